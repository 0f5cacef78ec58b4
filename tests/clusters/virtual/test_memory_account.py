"""Memory of virtual ranks against counts by hand: every storage once, under its category."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest

from labkit import Job, Run, virtual
from labkit.trace import Category

MB = 4 * 256_000
"""Bytes of 256,000 floats, a whole number of blocks."""


def run(source: str, ranks: int = 1, **options: Any) -> Run:
    head = """
        import torch, torch.nn as nn, torch.distributed as dist
        dist.init_process_group()
        rank, world_size = dist.get_rank(), dist.get_world_size()
    """
    cluster = virtual(nproc_per_node=ranks, **options)
    return cluster.run(Job(source=dedent(head) + dedent(source), filename="Cell In[1]"))


def peak(source: str, **options: Any) -> int:
    return run(source, **options).raise_if_failed().trace.peak_memory(0)


def test_views_and_in_place_operators_hold_nothing_of_their_own() -> None:
    assert peak("x = torch.empty(256_000)\nv = x.view(512, 500).t()[3:]\nx.add_(1).mul_(2)\ny = x.reshape(-1)") == MB


def test_memory_is_given_back_when_the_last_that_refers_to_it_is_gone() -> None:
    source = """
        x = torch.empty(256_000)
        view = x[:10]
        del x
        y = torch.empty(256_000)    # beside x, which the view still holds
        del view
        z = torch.empty(256_000)    # in its place
    """
    assert peak(source) == pytest.approx(2 * MB, rel=0.001)


def test_blocks_are_of_512_bytes() -> None:
    assert peak("x = [torch.empty(1) for _ in range(10)]") == 10 * 512


def test_resized_storages_count_as_large_as_they_are() -> None:
    source = """
        x = torch.empty(512_000)
        x.untyped_storage().resize_(0)
        y = torch.empty(512_000)
        out = torch.empty(0)
        torch.add(y, y, out=out)
    """
    assert peak(source) == 4 * MB


def test_saved_tensors_are_held_until_the_backward_pass_and_counted_once() -> None:
    source = """
        x = torch.randn(256_000)
        w = nn.Parameter(torch.ones(256_000))
        y = (x * w).exp()     # saves x, w and y itself: the product is let go
        z = y * y             # saves y, once
        z = z.sum()           # the backward of sum needs no values
        dist.barrier()
    """
    trace = run(source).raise_if_failed().trace
    last = {s.category: s.nbytes for s in trace.memory if s.rank == 0}
    assert last[Category.ACTIVATION] == pytest.approx(MB, abs=1024)
    assert trace.peak_by_category(0)[Category.PARAMETER] == pytest.approx(0, abs=MB + 1024)


MODEL = """
    torch.manual_seed(0)
    width, layers = 512, 4
    model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)])
    x = torch.randn(8, width)
"""
STATE = 4 * 512 * 512 * 4
"""Bytes of all parameters."""


def test_plain_data_parallel_holds_sixteen_bytes_a_parameter() -> None:
    source = (
        MODEL
        + """
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(x).sum().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
    """
    )
    held = run(source, ranks=2).raise_if_failed().trace.peak_by_category(0)
    assert held[Category.PARAMETER] == STATE
    assert held[Category.GRADIENT] == STATE
    # two moments, and during the step three temporaries of a layer's size: a root, its quotient, the previous layer's
    assert held[Category.OPTIMIZER] == pytest.approx(2 * STATE + 3 * STATE / 4, rel=0.02)


def test_zero_1_shards_the_optimizers_state() -> None:
    source = (
        MODEL
        + """
    mine = list(model.parameters())[rank * 2 : rank * 2 + 2]
    optimizer = torch.optim.Adam(mine, foreach=False)
    for _ in range(2):
        model(x).sum().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        for index, p in enumerate(model.parameters()):
            dist.broadcast(p.data, index // 2)
    """
    )
    held = run(source, ranks=2).raise_if_failed().trace.peak_by_category(0)
    assert held[Category.PARAMETER] == held[Category.GRADIENT] == STATE
    assert held[Category.OPTIMIZER] == pytest.approx(STATE + 3 * STATE / 4, rel=0.02)


def test_zero_2_frees_the_gradients_of_others() -> None:
    source = (
        MODEL
        + """
    owner = {p: index // 2 for index, p in enumerate(model.parameters())}
    def reduce(p):
        dist.reduce(p.grad, owner[p])
        if owner[p] != rank:
            p.grad = None
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(reduce)
    optimizer = torch.optim.Adam([p for p in owner if owner[p] == rank])
    for _ in range(2):
        model(x).sum().backward()
        optimizer.step()
        dist.barrier()
    """
    )
    trace = run(source, ranks=2).raise_if_failed().trace
    last = {s.category: s.nbytes for s in trace.memory if s.rank == 0}
    assert last[Category.PARAMETER] == STATE
    assert last[Category.GRADIENT] == STATE / 2
    assert last[Category.OPTIMIZER] == pytest.approx(STATE, rel=0.02)
    # never more than the gradients that are kept, and one in transit
    held = [s.nbytes for s in trace.memory if s.rank == 1 and s.category is Category.GRADIENT]
    assert max(held) <= STATE / 2 + STATE / 4


def test_zero_3_holds_a_share_of_everything_and_one_layer_gathered() -> None:
    source = (
        MODEL
        + """
    from torch.distributed.fsdp import fully_shard
    mesh = dist.device_mesh.init_device_mesh("cpu", (world_size,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
    """
    )
    trace = run(source, ranks=4).raise_if_failed().trace
    last = {s.category: s.nbytes for s in trace.memory if s.rank == 0}
    middle = sorted(e.end for e in trace.collectives(0) if e.operation == "barrier")[0]
    assert last[Category.PARAMETER] == pytest.approx(STATE / 4, rel=0.02)
    assert last[Category.OPTIMIZER] == pytest.approx(2 * STATE / 4, rel=0.02)
    # in addition to the shards at most two layers are gathered: one computes while the next is in transit
    gathered = [s.nbytes for s in trace.memory if s.rank == 0 and s.category is Category.PARAMETER and s.time > middle]
    assert STATE / 4 + STATE / 4 <= max(gathered) <= STATE / 4 + 2 * STATE / 4


@pytest.mark.parametrize("fake", [False, True])
def test_out_of_memory_is_raised_at_the_line_that_asked(fake: bool) -> None:
    source = """
        layer = nn.Linear(1, 1)
        layer.weight = nn.Parameter(torch.empty(10**9))
        x = torch.empty(10**10)
    """
    error = run(source, gpu="t4", fake=fake).ranks[0].error
    assert error is not None and error.type == "OutOfMemoryError"
    assert error.where == "Cell In[1], line 8"
    for part in ("rank 0 asked for 40.0 GB", "of the 16.0 GB of its t4 only 12.0 GB", "parameters 4.0 GB", "ZeRO"):
        assert part in error.message, error.message


def test_what_was_refused_is_not_held_and_the_program_can_go_on() -> None:
    source = """
        try:
            torch.empty(10**11)
        except torch.OutOfMemoryError:
            x = torch.empty(256_000)
    """
    assert peak(source) == MB


def test_samples_stay_few_and_the_peak_stays_exact() -> None:
    source = """
        for i in range(20_000):
            x = torch.empty(1000 + i % 100)
            if i == 12_345:
                y = torch.empty(256_000)
                del y
    """
    trace = run(source).raise_if_failed().trace
    assert len(trace.memory) < 3000
    # the previous tensor lives until its name is rebound
    assert trace.peak_memory(0) == MB + 4608


def test_the_order_in_which_tensors_end_at_one_moment_is_not_recorded() -> None:
    source = """
        kept = [torch.ones(number << 16) for number in range(1, 9)]
        while kept:
            kept.pop({first})
        torch.ones(1 << 10)
    """
    samples = [run(source.format(first=first)).raise_if_failed().trace.memory for first in (0, -1)]
    assert samples[0] == samples[1]


def test_buckets_of_ddp_are_communication() -> None:
    source = f"{MODEL}    ddp = nn.parallel.DistributedDataParallel(model)\n    ddp(x).sum().backward()\n"
    trace = run(source, ranks=2).raise_if_failed().trace
    last = {s.category: s.nbytes for s in trace.memory if s.rank == 0}
    assert last[Category.COMMUNICATION] == last[Category.GRADIENT] == last[Category.PARAMETER] == STATE
