"""The solution of llm_13b compared with the library. TODO(author): any world size, size and dtype."""

from __future__ import annotations

import torch

from labkit import Job, catalogue, virtual

EXERCISE = catalogue.find("llm_13b")
MODULES = {EXERCISE.name: EXERCISE.source("solution")[0]}

SUM = """
import torch, torch.distributed as dist
from labkit.exercises import llm_13b

dist.init_process_group()
llm_13b.total(torch.full((2,), 10.0 ** dist.get_rank()))
"""


def test_the_solution_is_a_sum() -> None:
    run = virtual(nproc_per_node=3).run(Job(source=SUM, modules=MODULES, timeout=60)).raise_if_failed()
    assert all(torch.equal(value, torch.full((2,), 111.0)) for value in run.values)
