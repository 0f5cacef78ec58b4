"""Ranks that torch's elastic agent starts, and starts again: `--max-restarts`, `--nnodes MIN:MAX`.

Each node is a supervisor (node.py) with an agent of torch's in a process of its own (agent.py), which asks the
supervisor to fork ranks (workers.py): the agent has threads, and a fork copies none. The client (run.py) holds a
session with each node, lets nodes go and come, and makes one `Run` of what all of them report (attempts.py).
"""

from labkit.clusters.elastic.run import Elasticity, run

__all__ = ["Elasticity", "run"]
