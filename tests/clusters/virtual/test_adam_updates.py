"""Adam's updates that are repeated on fake tensors: what a rank charges and keeps is as if it ran each operator."""

from __future__ import annotations

import pytest
from waiting import BROKEN_SECONDS

from labkit import Job, Run, virtual

PROGRAM = """
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group()
rank = dist.get_rank()
{before}
sizes = {sizes}
model = nn.Sequential(*[nn.Linear(size, size) for size in sizes])
optimizer = torch.optim.{optimizer}
versions = []
for step in range(3):
    dist.barrier()
    model(torch.ones(4, sizes[0])).sum().backward()
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (step + 1)
    optimizer.step()
    versions.append([p._version for p in model.parameters()])
    optimizer.zero_grad()
counts = [float(state["step"]) for state in optimizer.state.values()]
moved = all(later > earlier for pair in zip(versions, versions[1:]) for earlier, later in zip(*pair))
[counts, moved]
"""


def ran(optimizer: str, fake: bool, sizes: str = "[64, 64, 64]", before: str = "") -> Run:
    source = PROGRAM.format(optimizer=optimizer, sizes=sizes, before=before)
    return virtual(nproc_per_node=3, fake=fake).run(Job(source=source, timeout=BROKEN_SECONDS)).raise_if_failed()


def charges(run: Run, rank: int) -> tuple[list[object], list[object]]:
    assert run.trace is not None
    events = [(event.kind, event.start, event.end, event.operation) for event in run.trace.of(rank)]
    memory = [(s.time, s.category, s.nbytes) for s in run.trace.memory if s.rank == rank]
    return events, memory


@pytest.mark.parametrize(
    "optimizer",
    [
        "Adam(model.parameters())",
        "AdamW(model.parameters(), amsgrad=True)",
        "Adam(model.parameters(), weight_decay=0.1, maximize=True)",
        "AdamW([{'params': model[0].parameters(), 'weight_decay': 0.0}, {'params': model[1:].parameters()}])",
    ],
)
def test_every_rank_is_charged_what_real_tensors_are(optimizer: str) -> None:
    fake, real = ran(optimizer, fake=True), ran(optimizer, fake=False)
    assert fake.values == [[[3.0] * 6, True]] * 3
    for rank in range(3):  # the first lists the charges of its first step, all others repeat them
        assert charges(fake, rank) == charges(real, rank)


def test_other_shapes_have_charges_of_their_own() -> None:
    optimizer, sizes = "AdamW(model.parameters())", "[32 << rank] * 3"
    fake, real = (ran(optimizer, fake=fake, sizes=sizes) for fake in (True, False))
    for rank in range(3):
        assert charges(fake, rank) == charges(real, rank)
    assert fake.trace is not None
    assert fake.trace.peak_memory(2) > 2 * fake.trace.peak_memory(0)


def test_state_in_host_memory_has_charges_of_its_own() -> None:
    source = """
import labkit, torch
parameters = [torch.nn.Parameter(torch.ones(100_000)) for _ in range(2)]
parameters[1].data = labkit.to_host(parameters[1])
peaks = []
for number, parameter in enumerate(parameters):
    parameter.grad = labkit.to_host(parameter) if number else torch.ones_like(parameter)
    optimizer = torch.optim.Adam([parameter])
    for _ in range(2):
        labkit.reset_peak_memory_stats()
        optimizer.step()
    peaks.append(labkit.max_memory_allocated() - labkit.memory_allocated())
peaks
"""
    fake, real = (
        virtual(nproc_per_node=2, fake=fake).run(Job(source=source, timeout=BROKEN_SECONDS)).raise_if_failed()
        for fake in (True, False)
    )
    assert fake.values == real.values
    on_gpu, on_host = fake.values[0]
    assert on_gpu >= 400_000 > on_host
    for rank in range(2):
        assert charges(fake, rank) == charges(real, rank)


def test_a_mode_of_the_program_sees_all_operators() -> None:
    before = """
from torch.utils._python_dispatch import TorchDispatchMode
class Counting(TorchDispatchMode):
    seen = 0
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen += 1
        return function(*args, **(kwargs or {}))
mode = Counting()
"""
    source = PROGRAM.format(optimizer="Adam(model.parameters())", sizes="[8, 8]", before=before)
    source = source.replace("    optimizer.step()", "    with mode:\n        optimizer.step()") + "\nmode.seen"
    run = virtual(nproc_per_node=2, fake=True).run(Job(source=source, timeout=BROKEN_SECONDS)).raise_if_failed()
    assert run.values[0] == run.values[1] >= 3 * 4 * 10


def test_memory_may_end_in_a_repeated_update() -> None:
    source = """
import torch, torch.distributed as dist
dist.init_process_group()
held = torch.empty(dist.get_rank() * 10**10, dtype=torch.uint8)
parameter = torch.nn.Parameter(torch.empty(3 * 10**9))  # with gradient, averages and what the update needs, 72 of 80 GB
parameter.grad = torch.empty_like(parameter)
optimizer = torch.optim.Adam([parameter])
for rank in range(2):  # one after the other
    if rank == dist.get_rank():
        optimizer.step()
    dist.barrier()
"""
    first, second = virtual(nproc_per_node=2, fake=True).run(Job(source=source, timeout=BROKEN_SECONDS)).ranks
    assert first.error is None or first.error.consequence
    assert second.error is not None
    assert "rank 1 asked for 12.0 GB" in second.error.message
