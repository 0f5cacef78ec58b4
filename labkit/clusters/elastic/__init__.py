"""Ranks that torch's elastic agent starts, and starts again: `--max-restarts`, `--nnodes MIN:MAX`.

Each node is a supervisor (node.py) with an agent of torch's in a process of its own (agent.py), which asks the
supervisor to fork ranks (workers.py): the agent has threads, and a fork copies none. The client makes one `Run` of what
all of them report (course.py, attempts.py, outcome.py). On this machine it holds a session with each node, and lets
nodes go and come (run.py); nodes of a cluster are spoken to by labkit.clusters.agent.
"""

from labkit.clusters.elastic.run import Elasticity, run

__all__ = ["Elasticity", "run"]
