"""Parts of a dimension: they are even, cover it, and come back in order; a rank outside the group is refused."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import BROKEN_SECONDS

from labkit import Job, virtual


def ranks(world_size: int, source: str) -> list[Any]:
    run = virtual(nproc_per_node=world_size).run(Job(source=source, timeout=BROKEN_SECONDS))
    return run.raise_if_failed().values


GATHERED = """
import torch, torch.distributed as dist
from labkit.course.phase2_advanced.tensor_parallel.given.parts import all_gather_parts, part_of

dist.init_process_group()
whole = torch.arange(2 * size).view(2, size)
assert torch.equal(all_gather_parts(whole[:, part_of(size)], size), whole)
every = [part_of(size, rank=rank) for rank in range(dist.get_world_size())]
assert every[dist.get_rank()] == part_of(size)
[[part.start, part.stop] for part in every]
"""


@settings(max_examples=5)
@given(world_size=st.integers(1, 5), more=st.integers(0, 12))
def test_parts_are_even_and_come_back_in_order(world_size: int, more: int) -> None:
    size = world_size + more
    for parts in ranks(world_size, f"size = {size}\n{GATHERED}"):
        assert [begin for begin, _ in parts] == [0, *(end for _, end in parts[:-1])] and parts[-1][1] == size
        lengths = {end - begin for begin, end in parts}
        assert max(lengths) - min(lengths) <= 1


OUTSIDE = """
import torch, torch.distributed as dist
from labkit.course.phase2_advanced.tensor_parallel.given.parts import apply_in_group, part_of

class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return x

dist.init_process_group()
group = dist.new_group([0])

def refused(function, *arguments):
    try:
        function(*arguments)
    except ValueError as error:
        return str(error)

[refused(part_of, 4, group), refused(apply_in_group, Same, torch.ones(2), group), refused(part_of, 1)]
"""


def test_a_rank_outside_the_group_is_refused() -> None:
    inside, outside = ranks(2, OUTSIDE)
    too_few = "size must be at least 2, one for each rank, got 1"
    assert inside == [None, None, too_few]
    assert outside[2] == too_few
    for refusal in outside[:2]:
        assert refusal.startswith("group must contain this rank, 1, got")
