"""Ranks that torch's elastic agent starts and restarts: `--max-restarts`, `--nnodes MIN:MAX`.

Each node is a supervisor (node.py) with a torch agent in a process of its own (agent.py), which asks the supervisor to
fork ranks (workers.py): the agent has threads, and a fork copies none. The client combines all reports into one `Run`
(the job state, attempts.py, outcome.py). On this machine it has a session with each node, and lets nodes leave and join
(run.py); labkit.clusters.agent talks to the nodes of a cluster.
"""

from labkit.clusters.elastic.run import Elasticity, run

__all__ = ["Elasticity", "run"]
