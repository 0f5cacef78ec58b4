"""Given parts make groups that ranks agree on, whatever other groups each rank has made before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import BROKEN_SECONDS

from labkit import Job, virtual
from labkit.catalogue import find
from labkit.clusters.local import local

HEAD = """
import os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1])
"""
PARTS = {
    "a checkpointer": """
from labkit.exercises import checkpointing
def made(group):
    return checkpointing.DistributedCheckpointer(os.environ["FOLDER"], group=group).group
""",
    "a parameter server's requests": """
from labkit.course.phase3_multi_node.parameter_server.given.requests import open_groups
def made(group):
    servers, *workers = dist.get_process_group_ranks(group or dist.group.WORLD)
    return open_groups([servers], workers, group, torch.device("cpu"))
""",
}
"""Each defines `made(group)`, which makes the part for the ranks of the group and returns a group of its own."""

FIRST_A_PAIR = """
inside = made(pair) if rank < 2 else None
dist.barrier()
groups = [group for group in (inside, made(None), made(None)) if group is not None]
totals = []
for group in groups:
    total = torch.ones(1) + rank
    dist.all_reduce(total, group=group)
    totals.append(total.item())
[totals, len({group.group_name for group in groups}), [dist.get_process_group_ranks(group) for group in groups]]
"""
"""A subgroup's part, then two of all ranks: those that are in the subgroup have made one group more."""


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "cluster",
    [
        lambda: virtual(nproc_per_node=3),
        lambda: virtual(nproc_per_node=3, ranks="processes"),
        lambda: local(nproc_per_node=3),
    ],
    ids=["threads", "processes", "local"],
)
def test_a_subgroup_s_part_and_then_one_for_all(part: str, cluster: Callable[[], Any], tmp_path: Path) -> None:
    solved = {name: find(name).source("solution")[0] for name in ("checkpointing", "parameter_server")}
    modules = {find(name).name: text for name, text in solved.items()}
    source, environment = HEAD + PARTS[part] + FIRST_A_PAIR, {"FOLDER": str(tmp_path)}
    run = (
        cluster()
        .run(Job(source=source, modules=modules, environment=environment, timeout=BROKEN_SECONDS))
        .raise_if_failed()
    )
    of_all = [[0, 1, 2], [0, 1, 2]]
    assert run.values == [*[[[3.0, 6.0, 6.0], 3, [[0, 1], *of_all]]] * 2, [[6.0, 6.0], 2, of_all]]


def test_parts_of_a_split_group_are_named_by_their_ranks() -> None:
    source = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
first = dist.new_group([0, 1])
if rank < 2:
    dist.split_group(first, [[0], [1]])
part = dist.split_group(None, [[0, 3], [1, 2]])
total = torch.ones(1) + rank
dist.all_reduce(total, group=part)
total.item()
"""
    assert virtual(nproc_per_node=4).run(Job(source=source)).raise_if_failed().values == [5.0] * 4
