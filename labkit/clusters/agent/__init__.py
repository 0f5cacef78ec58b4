"""The lab's agent on each node of a cluster, and its client: one job over several machines, as one `Run`."""

from labkit.clusters.agent.line import NodesLine, open_line
from labkit.clusters.agent.nodes import Nodes, NodesLost, Ready
from labkit.clusters.agent.plan import Plan

__all__ = ["Nodes", "NodesLine", "NodesLost", "Plan", "Ready", "open_line"]
