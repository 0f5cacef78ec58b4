"""Gradients of several dtypes, some of them missing, added up over ranks."""

from __future__ import annotations

import math

from waiting import BROKEN_SECONDS

from labkit import Job, virtual

CELL = """
import torch, torch.distributed as dist
from labkit.course.phase2_advanced.mixed_precision.given.gradient_reduction import (
    all_reduce_gradients,
    share_of_samples,
)

dist.init_process_group()
rank = dist.get_rank()
kinds = [torch.float16, torch.float32, torch.float16, torch.float32]
parameters = [torch.nn.Parameter(torch.zeros(2, 1 + number, dtype=kind)) for number, kind in enumerate(kinds)]
parameters[0].grad = torch.full_like(parameters[0], 40000.0)
if rank == 1:
    parameters[1].grad = torch.full_like(parameters[1], 3.0)
parameters[2].grad = torch.full_like(parameters[2], 1.0 + rank)
all_reduce_gradients(parameters)
shares = [share_of_samples(samples, torch.device("cpu")).item() for samples in (1 + 2 * rank, 0)]
[[None if p.grad is None else (str(p.grad.dtype), tuple(p.grad.shape), p.grad.unique().tolist()) for p in parameters],
 shares]
"""


def test_sums_stay_in_their_dtype_and_missing_gradients_count_as_zero() -> None:
    run = virtual(nproc_per_node=2).run(Job(source=CELL, timeout=BROKEN_SECONDS)).raise_if_failed()
    for rank, (sums, (share, of_nothing)) in enumerate(run.values):
        assert sums == [
            ("torch.float16", (2, 1), [math.inf]),
            ("torch.float32", (2, 2), [3.0]),
            ("torch.float16", (2, 3), [3.0]),
            None,
        ]
        assert share == (0.25, 0.75)[rank] and math.isnan(of_nothing)
        sent = [event.nbytes for event in run.trace.collectives(rank) if event.operation == "all_reduce"]
        assert sent == [2 * (2 + 6 + 2), 4 * (4 + 8 + 2), 4, 4]
