"""The solution of monitoring: the same alarms on local processes and on virtual ranks, fingerprints beside hashlib."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import BROKEN_SECONDS

from autograder.judge import hidden_rubric
from autograder.mutants import Mutants
from labkit import Job, catalogue, local, virtual
from labkit.checks import Args, CheckFailed, Draw

EXERCISE = catalogue.find("monitoring")
MODULES = {EXERCISE.name: EXERCISE.source("solution")[0]}

# tensors that a cryptographic hash tells apart must have other fingerprints, and equal ones the same
FINGERPRINTS = """
import hashlib, random, torch
from labkit.exercises import monitoring

kinds = {kinds}
for seed in range(10):
    draw = random.Random(seed)
    plain, found = [], []
    for _ in range(40):
        tensor = torch.tensor([draw.choice([0, 1, 2]) for _ in range({length})])
        tensor = tensor.to(draw.choice(kinds))
        digest = hashlib.sha256(str((tensor.element_size(), tensor.tolist(), tensor.dtype.is_floating_point)).encode())
        plain.append((tensor.dtype, digest.hexdigest()))
        found.append((tensor.dtype, int(monitoring.fingerprint(tensor))))
    assert len(set(plain)) == len(set(found)) == len(set(zip(plain, found))), seed
"""


@pytest.mark.parametrize("length", [0, 1, 3, 4, 6])
def test_fingerprints_tell_apart_what_sha256_tells_apart(length: int) -> None:
    kinds = "torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64"
    cell = FINGERPRINTS.format(kinds=kinds, length=length)
    virtual(nproc_per_node=1).run(Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed()


@pytest.mark.xfail(
    strict=True, reason="of 2.0 as a word of 64 bits the weight keeps two: [1, 2, 0] is taken for [1, 0, 2]"
)
def test_fingerprints_tell_apart_small_numbers_in_float64() -> None:
    cell = FINGERPRINTS.format(kinds="(torch.float64,)", length=3)
    virtual(nproc_per_node=1).run(Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed()


@pytest.mark.parametrize("name", ["sum_alone", "regular_weights"])
def test_no_draw_of_the_hidden_check_hides_a_regular_sum(name: str) -> None:
    rubric = hidden_rubric(EXERCISE)
    (hashes,) = (check for check in rubric.checks if check.name == "hashes")
    mutant = ModuleType(name)
    exec(Mutants(rubric.exercise).text(name), mutant.__dict__)

    def call(_: object, inputs: list[Args]) -> SimpleNamespace:
        return SimpleNamespace(values=[[int(mutant.fingerprint(tensor)) for tensor in one.args[0]] for one in inputs])

    ranks = SimpleNamespace(call=call)
    for seed in range(200):
        with pytest.raises(CheckFailed):
            hashes(
                submission=SimpleNamespace(used_by=lambda _: None), ranks=lambda _: ranks, draw=Draw(seed, hashes.name)
            )


# what is planted is given as numbers, so real processes must find it, too, however slow the machine is
PLANTED = """
import torch, torch.distributed as dist
from labkit.exercises import monitoring

dist.init_process_group({backend!r})
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Linear(5, 3).to(torch.{dtype})
alone = monitoring.DistributedTrainingMonitor(rank, ranks).check_gradient_sync(model)
model(torch.ones(2, 5, dtype=torch.{dtype})).sum().backward()
if rank == ranks - 1:
    model.bias.grad[1] *= 1.5
monitor = monitoring.DistributedTrainingMonitor(rank, ranks, interval=4, probe_nbytes=1000)
alarms = monitor.check_gradient_sync(model)
for step in range(16):
    nbytes = 1000 * (100 + 2 * step * (rank == ranks - 1))
    with monitor.timed("communication"):
        dist.all_reduce(torch.ones(3))
    loss = torch.tensor(float("nan") if (step, rank) == (5, ranks - 1) else 1.0)
    alarms += monitor.log_step_metrics(step, loss, 8, nbytes)
assert alone == [], alone
assert monitor.measure_scaling_efficiency(1.0) > 0
[(alarm.cause, alarm.rank, alarm.detail) for alarm in alarms if not alarm.cause.startswith("slow")]
"""


def wanted(world_size: int) -> list[tuple[str, int, str]]:
    last = world_size - 1
    differ = {1: [], 2: [0, 1]}.get(world_size, [last])
    synchronized = [("desynchronized", rank, "bias.grad") for rank in differ]
    return [*synchronized, ("loss not finite", last, ""), ("memory leak", last, "")]


@settings(max_examples=4)
@given(
    world_size=st.integers(1, 4),
    backend=st.sampled_from(["gloo", "nccl"]),
    dtype=st.sampled_from(["float32", "float64", "bfloat16"]),
)
def test_planted_faults_are_named_on_all_virtual_ranks(world_size: int, **how: str) -> None:
    run = virtual(nproc_per_node=world_size).run(
        Job(source=PLANTED.format(**how), modules=MODULES, timeout=BROKEN_SECONDS)
    )
    assert run.raise_if_failed().values == [wanted(world_size)] * world_size


def test_planted_faults_are_named_on_local_processes() -> None:
    cell = PLANTED.format(backend="gloo", dtype="float32")
    run = local(nproc_per_node=3).run(Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS))
    assert run.raise_if_failed().values == [wanted(3)] * 3


# two groups of two ranks, each with a monitor of its own
GROUPS = """
import torch, torch.distributed as dist
from labkit.exercises import monitoring

dist.init_process_group()
groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
group = groups[dist.get_rank() % 2]
rank = dist.get_rank(group)
monitor = monitoring.DistributedTrainingMonitor(rank, 2, interval=2, group=group)
found = []
for step in range(4):
    found += monitor.log_step_metrics(step, float("inf") if (dist.get_rank(), step) == (3, 2) else 1.0)
[(alarm.cause, alarm.rank, alarm.step) for alarm in found]
"""


def test_a_monitor_watches_its_group_alone() -> None:
    run = virtual(nproc_per_node=4).run(Job(source=GROUPS, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed()
    assert run.values == [[], [("loss not finite", 1, 2)]] * 2
