"""Part of solutions.py: exercise 10's ring compared with gloo's all-reduce, timed as in beside_gloo.py.

Gloo's all-reduce is a ring, too, cut into segments that are added while others are sent.
"""

from __future__ import annotations

from beside import Beside
from beside_gloo import beside_gloo


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure the ring on a small tensor and on a large one."""
    return beside_gloo("ring_allreduce", ["ring_all_reduce"], repetitions, quick)
