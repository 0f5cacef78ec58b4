"""Part of solutions.py: exercise 02's collectives compared with gloo's, timed as in beside_gloo.py.

Gloo's broadcast is a binomial tree, like ours; its all-reduce is a ring, cut into segments that are added while others
are sent; its reduce and all-gather are rings too.
"""

from __future__ import annotations

from beside import Beside
from beside_gloo import beside_gloo

FUNCTIONS = (
    *("broadcast", "reduce", "all_gather"),
    *("all_reduce_naive", "all_reduce_tree", "all_reduce_recursive_doubling"),
)


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure each collective on a small tensor and on a large one."""
    return beside_gloo("collectives", FUNCTIONS, repetitions, quick)
