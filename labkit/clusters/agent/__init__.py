"""The lab's agent on each node of a cluster, and its client: one job over several machines, as one `Run`."""

from labkit.clusters.agent.connection import NodesConnection, open_connection
from labkit.clusters.agent.nodes import NodeInfo, Nodes, NodesLost
from labkit.clusters.agent.plan import LaunchPlan

__all__ = ["LaunchPlan", "NodeInfo", "Nodes", "NodesConnection", "NodesLost", "open_connection"]
