"""Given parts of the exercise on expert parallelism: argument checks, what a router returns, and the experts of a rank.

routing = Routing(experts, weights, kept, loss, num_experts)  # routing.counts, routing.dropped
outputs = experts(batches)                                    # one tensor for each of this rank's experts
"""

from labkit.course.phase3_multi_node.expert_parallel.given.arguments import (
    check_average,
    check_combine,
    check_dispatch,
    check_layer,
    check_router,
    check_tokens,
)
from labkit.course.phase3_multi_node.expert_parallel.given.experts import Experts
from labkit.course.phase3_multi_node.expert_parallel.given.routing import Journey, Routing

__all__ = [
    "Experts",
    "Journey",
    "Routing",
    "check_average",
    "check_combine",
    "check_dispatch",
    "check_layer",
    "check_router",
    "check_tokens",
]
