"""What virtual ranks compute once for all of them, or in fewer steps than torch: the results are torch's own."""

from __future__ import annotations

import pytest

from labkit import Job, virtual

HEAD = """
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group()
rank, world_size = dist.get_rank(), dist.get_world_size()
"""


def output(source: str, ranks: int = 2, fake: bool = True) -> list[str]:
    run = virtual(nproc_per_node=ranks, fake=fake).run(Job(source=f"{HEAD}{source}", timeout=120)).raise_if_failed()
    return [rank.output.strip() for rank in run.ranks]


RULE = """
from torch.utils._python_dispatch import TorchDispatchMode

class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))

@torch.library.custom_op(f"labtest::negative{rank}", mutates_args=())
def negative(x: torch.Tensor) -> torch.Tensor:
    return -x

negative.register_fake(torch.empty_like)
with Mode():
    negative(torch.ones(2))
called = []
handle = negative.register_torch_dispatch(Mode, lambda mode, function, types, args, kwargs: called.append(1) or args[0])
with Mode():
    negative(torch.ones(2))
print(called)
"""


@pytest.mark.parametrize("fake", [False, True])
def test_an_operator_s_rule_for_a_mode_is_found_also_if_it_comes_after_the_first_call(fake: bool) -> None:
    assert output(RULE, fake=fake) == ["[1]", "[1]"]


STRIDES = """
from torch.distributed.fsdp import fully_shard
model = nn.Module()
model.parameter = nn.Parameter(torch.empty(5, 3, 2))
model.empty = nn.Parameter(torch.empty(0, 4))
model.scalar = nn.Parameter(torch.empty(1))
fully_shard(model)
print([(tuple(p.to_local().shape), p.to_local().stride(), p.stride()) for p in model.parameters()])
"""


def test_uneven_and_empty_shards_of_fake_parameters_are_those_of_real_ones() -> None:
    fake, real = (output(STRIDES, 3, fake) for fake in (True, False))
    assert fake == real
    assert len({*fake}) == 3, "each rank has shards of other sizes"
