"""Given parts of the exercise on context parallelism: checks, attention to one block, messages in a ring, masks.

out, lse = attend(q, k, v, diagonal)                             # attention, and the logsumexp of each row of scores
dq, dk, dv = attend_backward(grad, q, k, v, out, lse, diagonal)  # with `out` and `lse` of the whole rows
add_to(totals, parts)
arriving = pass_on([k, v], group)                                # to the next rank, and from the one before
k, v = arriving.wait()
pairs = visible_in_sequence(rank, ranks, tokens, causal, layout)  # [(rows, columns, diagonal), ...]
"""

from labkit.course.phase3_multi_node.context_parallel.given.arguments import (
    check_attention,
    check_heads,
    check_merge,
    check_split,
)
from labkit.course.phase3_multi_node.context_parallel.given.block_attention import add_to, attend, attend_backward
from labkit.course.phase3_multi_node.context_parallel.given.masks import visible_in_sequence
from labkit.course.phase3_multi_node.context_parallel.given.ring_messages import Arriving, pass_on

__all__ = [
    "Arriving",
    "add_to",
    "attend",
    "attend_backward",
    "check_attention",
    "check_heads",
    "check_merge",
    "check_split",
    "pass_on",
    "visible_in_sequence",
]
