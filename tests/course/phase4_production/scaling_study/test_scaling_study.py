"""The solution of scaling_study: studies on virtual ranks and local processes, DDP and FSDP as workloads, fits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, exercises, local, virtual
from labkit.clusters.cluster import Cluster
from labkit.course.phase4_production.scaling_study.given import Measurement, fit_law

EXERCISE = catalogue.find("scaling_study")
MODULES = {one.name: one.source("solution")[0] for one in (*EXERCISE.builds_on, EXERCISE)}

# rank r works (1 + r) ms for each sample, so the last rank of a group decides
STUDY = """
import time, torch, torch.distributed as dist
from labkit.exercises import scaling_study
from labkit.course.phase4_production.scaling_study.given import Workload

dist.init_process_group({backend!r})
taken = []

def make(batch_size, group):
    def step():
        taken.append(batch_size)
        time.sleep(0.001 * batch_size * (1 + dist.get_rank()))
    return Workload(step, step)

benchmark = scaling_study.ScalabilityBenchmark(make, steps=3, warmup=2, repeats=2)
sizes = [n for n in (1, 2, 3, 4) if n <= dist.get_world_size()]
weak = benchmark.weak_scaling(sizes, 12)
strong = benchmark.strong_scaling(sizes, 12)
again = len(taken)
assert benchmark.weak_scaling(sizes, 12) == weak and len(taken) == again and len(benchmark.points) == 2 * len(sizes)
[[(p.measurement.origin, p.measurement.world_size, p.measurement.batch_size, p.measurement.seconds, p.efficiency)
  for p in (*weak, *strong)], len(taken)]
"""


@settings(max_examples=4)
@given(world_size=st.integers(1, 4), backend=st.sampled_from(["gloo", "nccl"]))
def test_studies_on_virtual_ranks_have_the_planted_times(world_size: int, backend: str) -> None:
    run = virtual(nproc_per_node=world_size).run(
        Job(source=STUDY.format(backend=backend), modules=MODULES, timeout=BROKEN_SECONDS)
    )
    sizes = range(1, world_size + 1)
    for points, _ in run.raise_if_failed().values:
        assert [point[:3] for point in points] == [
            *(("virtual", n, 12) for n in sizes), *(("virtual", n, 12 // n) for n in sizes)
        ]  # fmt: skip
        seconds = [*(0.012 * n for n in sizes), *(0.012 for _ in sizes)]
        assert [point[3] for point in points] == pytest.approx(seconds, rel=1e-3)
        assert [point[4] for point in points] == pytest.approx([1 / n for n in sizes] * 2, rel=1e-3)


def test_a_study_on_local_processes_takes_the_same_steps() -> None:
    run = local(nproc_per_node=2).run(Job(source=STUDY.format(backend="gloo"), modules=MODULES, timeout=BROKEN_SECONDS))
    (points, taken), (other, _) = run.raise_if_failed().values
    assert points == other
    assert [point[:3] for point in points] == [("real", 1, 12), ("real", 2, 12), ("real", 1, 12), ("real", 2, 6)]
    # a sleep takes as long or longer; 2 steps of warm-up and 2 repeats of 3, with and without communication
    assert points[1][3] >= 0.024 and points[3][3] >= 0.012 and taken == 3 * 2 * (2 + 2 * 3)


TRAINED = """
import torch, torch.distributed as dist
from labkit.exercises import scaling_study

dist.init_process_group()
models = []

def make_model():
    torch.manual_seed(0)
    models.append(torch.nn.Sequential(torch.nn.Linear(9, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1)))
    return models[-1]

def loss(model, samples):
    return model(torch.ones(samples, 9)).square().mean()

workload = scaling_study.training({strategy!r}, make_model, loss)(5, None)
before = torch.cat([p.detach().flatten() for p in make_model().parameters()])
for _ in range(3):
    workload.step()
made = len(models)
for _ in range(3):
    workload.compute()
bare = torch.cat([p.detach().flatten() for p in models[-1].parameters()])
[made, len(models), bool((bare != before).any()), len(dist.get_process_group_ranks(None))]
"""


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("cluster", [virtual(nproc_per_node=3), local(nproc_per_node=2)], ids=["virtual", "local"])
def test_training_makes_the_bare_model_only_for_the_step_without_messages(strategy: str, cluster: Cluster) -> None:
    run = cluster.run(
        Job(source=TRAINED.format(strategy=strategy), modules=MODULES, timeout=BROKEN_SECONDS)
    ).raise_if_failed()
    assert all(value[:3] == [2, 3, True] for value in run.values)
    sent = {event.operation for event in run.trace.collectives(0)}
    assert "all_reduce" in sent if strategy == "ddp" else any("scatter" in name for name in sent)


@settings(max_examples=20, deadline=None)
@given(
    contention=st.floats(0, 0.3),
    coherency=st.floats(1e-6, 1e-2),
    rate=st.floats(1e-3, 1e6),
    first=st.sampled_from([1, 2, 8]),
)
def test_a_planted_law_is_found(contention: float, coherency: float, rate: float, first: int) -> None:
    with exercises.installed(MODULES):
        from labkit.exercises import scaling_study
    gpus = [first * 2**power for power in range(7)]
    rates = [rate * scaling_study.usl(n, contention, coherency) for n in gpus]
    fit = fit_law(scaling_study.usl, gpus, rates)
    assert fit is not None and fit.error < 1e-3
    assert [fit.rate * scaling_study.usl(n, *fit.parameters.values()) for n in gpus] == pytest.approx(rates, rel=5e-3)
    most = scaling_study.most_useful_gpus(contention, coherency)
    best = scaling_study.usl(most, contention, coherency)
    assert best >= max(scaling_study.usl(max(1.0, most * way), contention, coherency) for way in (0.9, 1.1)) - 1e-9
    assert scaling_study.amdahl(64, contention) == pytest.approx(scaling_study.usl(64, contention, 0))
    assert math.isinf(scaling_study.most_useful_gpus(0.1, 0))


def test_costs_are_those_of_all_gpus() -> None:
    with exercises.installed(MODULES):
        from labkit.exercises import scaling_study
    of = Measurement("real", "ddp", 8, 10, (3.6,), (3.6,))
    cost = scaling_study.ScalabilityBenchmark().cost_per_epoch(of, 801, 3.0)
    assert cost == pytest.approx((11, 0.011, 0.088, 0.264))


DATA_PARALLEL = """
import time, torch, torch.distributed as dist
from labkit.bench.models import named
from labkit.exercises import scaling_study

dist.init_process_group("nccl")
model = named("resnet50-products")
workload = scaling_study.training("ddp", model.make, model.loss)

def make(batch_size, group):
    return workload(batch_size, group)._replace(compute=lambda: time.sleep(1e-3))

benchmark = scaling_study.ScalabilityBenchmark(make, strategy="ddp", steps=1, warmup=0, repeats=1)
[(point.measurement.world_size, point.efficiency) for point in benchmark.weak_scaling([1, 8, 16, 32], 64)]
"""


def test_data_parallel_training_on_dgx_a100_exceeds_the_efficiencies_asked_for() -> None:
    """More than 90 % at 8 GPUs, 85 % at 16 and 80 % at 32, as notebook 23 says of the cluster on which it measures; not
    at 32 if each node has one card of 25 Gb/s.
    """
    rate = {"gpu.fp32_tflops": 40.9}

    def efficiencies(**network: str | int) -> dict[int, float]:
        cluster = virtual("dgx-a100", nnodes=4, nproc_per_node=8, fake=True, settings=rate, **network)
        job = Job(source=DATA_PARALLEL, modules=MODULES, timeout=BROKEN_SECONDS, trace=False)
        return dict(cluster.run(job).raise_if_failed().values[0])

    dgx, slow = efficiencies(), efficiencies(inter_node="ethernet-25g", nics_per_node=1)
    assert dgx[8] > 0.90 and dgx[16] > 0.85 and dgx[32] > 0.80
    assert slow[8] == pytest.approx(dgx[8], abs=0.01), "messages inside of a node take another network"
    assert slow[32] < 0.80
