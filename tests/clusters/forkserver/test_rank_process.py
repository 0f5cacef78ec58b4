"""A rank begins like a program under torchrun, regardless of how its start was made cheap."""

from __future__ import annotations

from labkit import Job, Run, local


def run(source: str, ranks: int = 2) -> Run:
    return local(nproc_per_node=ranks).run(Job(source=source)).raise_if_failed()


def test_nothing_of_the_rehearsal_is_seen() -> None:
    source = """
import sys, threading, torch.distributed as dist
names = []
assert not dist.is_initialized() and sys.excepthook is sys.__excepthook__ and threading.active_count() == 1
for _ in range(2):
    dist.init_process_group()
    names.append((dist.get_backend(), dist.group.WORLD.group_name, dist.new_group([0, 1]).group_name))
    dist.destroy_process_group()
names
"""
    assert run(source).values == [[("gloo", "0", "1"), ("gloo", "0", "1")]] * 2


def test_ranks_draw_numbers_of_their_own() -> None:
    first, second = run(
        "import numpy, random, torch\n(torch.rand(1).item(), numpy.random.rand(), random.random())"
    ).values
    assert all(ours != theirs for ours, theirs in zip(first, second, strict=True))


def test_groups_that_a_program_has_destroyed_do_not_pile_up() -> None:
    source = """
import os, torch, torch.distributed as dist
count = []
for _ in range(60):
    dist.init_process_group()
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    count.append(len(os.listdir("/proc/self/fd")))
min(count[50:]) <= max(count[20:30])  # some of the last group's may still be about to be closed
"""
    assert run(source).values == [True, True]
