"""pipeline_parallel: schedules of every size, the best cut, any schedule on ranks, compared with the library."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, exercises, virtual

EXERCISE = catalogue.find("pipeline_parallel")
MODULES = {EXERCISE.name: EXERCISE.source("solution")[0]}
pipeline = exercises.load(EXERCISE, MODULES[EXERCISE.name])
sizes = st.integers(1, 7)

WHOLE = """
import torch, torch.distributed as dist
from torch import nn
from labkit.exercises import pipeline_parallel as pp

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
layers = [nn.Linear(3, 3, dtype=torch.float64) for _ in range(ranks * chunks)]
batch, target = torch.randn(2, samples, 3, dtype=torch.float64)
wanted = torch.autograd.grad(nn.functional.mse_loss(nn.Sequential(*layers)(batch), target), [l.weight for l in layers])
stages = [pp.PipelineStage(layers[index], index, len(layers)) for index in range(rank, len(layers), ranks)]
schedule = pp.get_pipeline_schedule(name, ranks, microbatches, chunks)
loss = pp.PipelineParallel(stages, schedule).forward_backward(batch, target, nn.functional.mse_loss)
for stage in stages:
    torch.testing.assert_close(stage.module.weight.grad, wanted[stage.index])
loss is None
"""
BESIDE = """
import copy, torch, torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from labkit.exercises import pipeline_parallel as pp

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
mine = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
theirs = copy.deepcopy(mine)
batch = torch.arange(64.0).view(8, 8) / 64
stage = pipelining.PipelineStage(theirs, rank, ranks, torch.device("cpu"))
library = pipelining.Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
library.step(*((batch,) if rank == 0 else ()), **({"target": batch} if rank == ranks - 1 else {}))
own = pp.PipelineParallel([pp.PipelineStage(mine, rank, ranks)], pp.one_f_one_b_schedule(ranks, 4))
own.forward_backward(batch, batch, nn.functional.mse_loss)
torch.testing.assert_close([p.grad for p in mine.parameters()], [p.grad for p in theirs.parameters()])
"""
RECOMPUTED = """
import labkit, torch, torch.distributed as dist
from torch import nn
from labkit.exercises import pipeline_parallel as pp

dist.init_process_group()
rank, ranks, rows, width, depth = dist.get_rank(), dist.get_world_size(), 32, 512, 6
batch = torch.randn(microbatches * rows, width, generator=torch.Generator().manual_seed(0))
inputs = rows * width * 4


def step(recompute):
    torch.manual_seed(rank)
    blocks = (nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.3)) for _ in range(depth))
    module = nn.Sequential(*blocks)
    stage = pp.PipelineStage(module, rank, ranks, recompute=recompute)
    pipeline = pp.PipelineParallel([stage], pp.get_pipeline_schedule(name, ranks, microbatches))
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    dist.barrier()
    before = labkit.memory_allocated()
    labkit.reset_peak_memory_stats()
    loss = pipeline.forward_backward(batch, batch, nn.functional.mse_loss)
    held = (labkit.max_memory_allocated() - before) / inputs
    return loss, [parameter.grad for parameter in module.parameters()], torch.rand(2), held


(loss, gradients, drawn, kept), (again, regained, redrawn, recomputed) = step(False), step(True)
assert (loss is None and again is None) or loss.equal(again)
assert drawn.equal(redrawn) and all(a.equal(b) for a, b in zip(gradients, regained, strict=True))
[kept, recomputed]
"""
SUMS = """
import torch, torch.distributed as dist
from torch import nn
from labkit.exercises import pipeline_parallel as pp

dist.init_process_group()
rank, ranks, m = dist.get_rank(), dist.get_world_size(), 7
batch, target = torch.randn(2, 4 * m, 16, generator=torch.Generator().manual_seed(0))


def layers():
    torch.manual_seed(0)
    return [nn.Linear(16, 16) for _ in range(ranks)]


def gradient(schedule):
    stage = pp.PipelineStage(layers()[rank], rank, ranks)
    pp.PipelineParallel([stage], schedule).forward_backward(batch, target, nn.functional.mse_loss)
    return stage.module.weight.grad


model = nn.Sequential(*layers())
for part, wanted in zip(batch.tensor_split(m), target.tensor_split(m)):
    (nn.functional.mse_loss(model(part), wanted) * (len(part) / len(batch))).backward()
gpipe = pp.gpipe_schedule(ranks, m)
last_first = [a if a.op == "forward" else a._replace(microbatch=m - 1 - a.microbatch) for a in gpipe]
accumulated = model[rank].weight.grad
torch.testing.assert_close(gradient(last_first), accumulated)
[gradient(one).equal(accumulated) for one in (gpipe, pp.one_f_one_b_schedule(ranks, m), last_first)]
"""


@given(stages=sizes, chunks=st.integers(1, 4), microbatches=st.integers(1, 14))
@settings(max_examples=60)
def test_schedules_are_as_short_as_they_can_be(stages: int, chunks: int, microbatches: int) -> None:
    for name, c in (("gpipe", 1), ("1f1b", 1), ("interleaved", chunks)):
        schedule = pipeline.get_pipeline_schedule(name, stages, microbatches, c)
        assert len(schedule) == 2 * stages * c * microbatches
        if c == 1 or microbatches >= stages:
            best = (stages - 1) / (c * microbatches + stages - 1)
            assert pipeline.bubble_fraction(schedule) == pytest.approx(best)
        for rank in range(stages if c == 1 else 0):
            backwards = [a.microbatch for a in schedule if (a.stage, a.op) == (rank, "backward")]
            assert backwards == list(range(microbatches))
        if name == "1f1b" or (name == "interleaved" and c == 1):
            assert pipeline.most_in_flight(schedule) == [min(stages - r, microbatches) for r in range(stages)]


@given(costs=st.lists(st.integers(0, 20), min_size=1, max_size=8), data=st.data())
@settings(max_examples=60)
def test_in_no_other_split_does_the_most_expensive_stage_cost_less(costs: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(costs)))
    layers = [nn.Identity() for _ in costs]
    price = {id(layer): cost for layer, cost in zip(layers, costs, strict=True)}
    stages = pipeline.split_into_stages(layers, count, costs)
    assert [id(layer) for stage in stages for layer in stage] == [id(layer) for layer in layers]
    cuts = ([0, *places, len(costs)] for places in combinations(range(1, len(costs)), count - 1))
    best = min(max(sum(costs[a:b]) for a, b in pairwise(cut)) for cut in cuts)
    assert all(len(stage) for stage in stages) and len(stages) == count
    assert max(sum(price[id(layer)] for layer in stage) for stage in stages) == best


@given(
    world_size=st.integers(1, 4),
    name=st.sampled_from(["gpipe", "1f1b", "interleaved"]),
    microbatches=st.integers(1, 6),
    samples=st.integers(1, 9),
)
@settings(max_examples=5)
def test_gradients_are_those_of_one_process(world_size: int, name: str, microbatches: int, samples: int) -> None:
    chunks = 2 if name == "interleaved" else 1
    arguments = f"name, chunks, microbatches, samples = {name!r}, {chunks}, {microbatches}, {samples}\n"
    run = virtual(nproc_per_node=world_size).run(Job(source=arguments + WHOLE, modules=MODULES, timeout=BROKEN_SECONDS))
    assert run.raise_if_failed().values == [True] * (world_size - 1) + [False]


@pytest.mark.parametrize(("name", "in_flight"), [("gpipe", 12), ("1f1b", 3)])
def test_recomputation_keeps_inputs_and_one_microbatch_s_activations(name: str, in_flight: int) -> None:
    """Loss, gradients and later random numbers are the same to the bit, with dropout."""
    arguments = f"name, microbatches = {name!r}, 12\n"
    job = Job(source=arguments + RECOMPUTED, modules=MODULES, timeout=BROKEN_SECONDS)
    run = virtual(nproc_per_node=3).run(job).raise_if_failed()
    for rank, (kept, recomputed) in enumerate(run.values):
        flying = in_flight if name == "gpipe" else in_flight - rank
        # of each of six blocks a tanh, a mask and an output, which only the loss needs of the last block
        activations = 6 * 3 - (rank < 2)
        assert kept - recomputed == pytest.approx((flying - 1) * activations, abs=0.5)
        assert recomputed < 12 * (rank > 0) + 2.2 * activations, "inputs, one microbatch, and its gradients"


def test_gradients_are_sums_in_the_order_of_the_microbatches() -> None:
    """GPipe and 1F1B accumulate to the bit as a loop does; GPipe's paper begins with the last microbatch."""
    run = virtual(nproc_per_node=3).run(Job(source=SUMS, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed()
    assert run.values == [[True, True, False]] * 3


def test_beside_torch_s_pipelining() -> None:
    virtual(nproc_per_node=3).run(Job(source=BESIDE, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed()


def test_a_stage_whose_inputs_do_not_matter_sends_zeros_back() -> None:
    class Deaf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.weight.expand(len(inputs), 2)

    stage = pipeline.PipelineStage(Deaf(), 1, 2)
    stage.forward(0, torch.ones(3, 2, requires_grad=True))
    assert torch.equal(stage.backward(0, torch.ones(3, 2)), torch.zeros(3, 2))
    assert torch.equal(stage.module.weight.grad, torch.full((2,), 3.0))
