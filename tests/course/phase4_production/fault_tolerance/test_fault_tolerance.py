"""The solution of fault_tolerance: losses of one process, whatever dies, on virtual ranks and under torch's agents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, local, virtual
from labkit.clusters import Cluster
from labkit.clusters.virtual import kill
from labkit.course.phase4_production.fault_tolerance.given import (
    LLAMA_3,
    ElasticConfig,
    GlobalBatchSampler,
    Journal,
    simulated_goodput,
)
from labkit.exercises import load

EXERCISE = catalogue.find("fault_tolerance")
NAMES = ("checkpointing", "fault_tolerance")
MODULES = {catalogue.find(name).name: catalogue.find(name).source("solution")[0] for name in NAMES}
STEPS = 10  # two epochs of 19 samples in batches of 4, the last one of 3

PROGRAM = """
import json, os, signal, time
from datetime import timedelta
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from labkit.exercises import checkpointing, fault_tolerance
from labkit.course.phase4_production.fault_tolerance.given import GlobalBatchSampler, restart_count


class EveryThirdStep(checkpointing.DistributedCheckpointer):
    def should_checkpoint(self, step):
        return step % 3 == 0


dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, ranks = dist.get_rank(), dist.get_world_size()
dtype = getattr(torch, os.environ.get("DTYPE", "float32"))
draw = torch.Generator().manual_seed(0)
inputs = torch.randn(19, 4, generator=draw).to(dtype)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
layers = torch.nn.Linear(4, 8, dtype=dtype), torch.nn.Tanh(), torch.nn.Linear(8, 1, dtype=dtype)
model = torch.nn.Sequential(*layers)
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, generator=draw)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(data, batch_sampler=GlobalBatchSampler(19, 4, ranks, rank))
steps = 0


def criterion(outputs, targets):
    global steps
    steps += 1
    exec(os.environ.get("FAULT", ""), globals())
    time.sleep(float(os.environ.get("SECONDS", 0)))
    return torch.nn.functional.mse_loss(outputs, targets)


limit = float(os.environ.get("HANG", 30))
checkpoints = EveryThirdStep(os.environ["FOLDER"], timeout_seconds=limit)
training = fault_tolerance.ElasticTraining(checkpoints, hang_timeout=limit)
losses = training.train_with_fault_tolerance(model, optimizer, criterion, loader, num_epochs=2)
[torch.nn.utils.parameters_to_vector(model.parameters()).detach(), max(losses, default=0)]
"""


def solution() -> Any:
    return load(EXERCISE, EXERCISE.source("solution")[0])


def run(cluster: Cluster, folder: Path, **environment: str) -> Any:
    job = Job(
        source=PROGRAM, modules=MODULES, environment={"FOLDER": str(folder), **environment}, timeout=BROKEN_SECONDS
    )
    return cluster.run(job)


def launch(tmp_path: Path, fault: str, cluster: Cluster | None = None, **options: Any) -> Any:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    folder = tmp_path / "checkpoints"
    environment = {"FOLDER": str(folder), "FAULT": fault, **options.pop("environment", {})}
    config = ElasticConfig(program, cluster=cluster, environment=environment, **options)
    return solution().ElasticTraining(folder).launch_elastic_training(config)


@pytest.fixture(autouse=True)
def written(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The learner's modules are the solutions."""
    workspace = tmp_path_factory.mktemp("workspace")
    for name, source in MODULES.items():
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / f"{name}.py").write_text(source)
    monkeypatch.setenv("LABKIT_WORKSPACE", str(workspace))


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.Tensor, dict[int, float]]:
    """Weights and losses of one rank without failures."""
    folder = tmp_path_factory.mktemp("one")
    weights, _ = run(virtual(nproc_per_node=1), folder).raise_if_failed().values[0]
    return weights, Journal(folder / "journal.jsonl").losses()


def close(one: dict[int, float], other: dict[int, float], tolerance: float = 1e-5) -> bool:
    return one.keys() == other.keys() and all(abs(one[step] - loss) < tolerance for step, loss in other.items())


@pytest.mark.parametrize(("ranks", "dtype"), [(2, "float32"), (3, "float64"), (3, "bfloat16")])
def test_without_failures_it_is_one_process(tmp_path: Path, ranks: int, dtype: str) -> None:
    runs = {n: run(virtual(nproc_per_node=n), tmp_path / str(n), DTYPE=dtype).raise_if_failed() for n in (1, ranks)}
    alone, together = (runs[n].values[0][0] for n in (1, ranks))
    tolerance = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 0.05}[dtype]
    torch.testing.assert_close(together, alone, rtol=tolerance, atol=tolerance)


@settings(max_examples=5, deadline=None)
@given(st.data())
def test_whatever_dies_the_losses_go_on(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Ranks of any number are killed at any time, again and again, on other world sizes, also within a checkpoint."""
    folder = tmp_path_factory.mktemp("killed")
    reference = run(virtual(nproc_per_node=1), folder / "one").raise_if_failed().values[0][0]
    for attempt in range(3):
        ranks = data.draw(st.sampled_from([1, 2, 3]), label="ranks")
        dies = data.draw(st.integers(0, ranks - 1), label="rank")
        faults = [kill(dies, at=data.draw(st.floats(0.0, 10.0), label="time"))] if attempt < 2 else []
        finished = run(virtual(nproc_per_node=ranks, faults=faults), folder / "many", SECONDS="1")
    torch.testing.assert_close(finished.raise_if_failed().values[0][0], reference, rtol=1e-5, atol=1e-5)
    journal = Journal(folder / "many" / "journal.jsonl")
    assert close(journal.losses(), Journal(folder / "one" / "journal.jsonl").losses())
    assert all(lost <= 3 for lost in journal.steps_lost())


def test_a_killed_process_is_restarted_and_the_losses_are_the_same(tmp_path: Path, one_process: Any) -> None:
    """Rank 0 in step 5, by SIGKILL, then rank 1 by an error: torch's agent starts both again, twice."""
    fault = """
if restart_count() == 0 and rank == 0 and steps == 5:
    os.kill(os.getpid(), signal.SIGKILL)
if restart_count() == 1 and rank == 1 and steps == 4:
    raise ArithmeticError("planted")
"""
    found = launch(tmp_path, fault, nproc_per_node=2, max_restarts=2)
    assert close(found.losses, one_process[1])
    assert [attempt.first_step for attempt in found.attempts] == [0, 3, 6]
    assert list(found.steps_lost) == [1, 0]


def test_a_lost_node_leaves_the_others_with_the_same_global_batches(tmp_path: Path, one_process: Any) -> None:
    fault = "if rank == 1 and ranks == 3 and steps == 5: os.kill(os.getppid(), signal.SIGKILL)"
    cluster = local(nproc_per_node=1, nnodes=3)
    found = launch(tmp_path, fault, cluster, min_nodes=1, max_nodes=3, max_restarts=2)
    assert [attempt.world_size for attempt in found.attempts] == [3, 2]
    assert close(found.losses, one_process[1])


def test_a_process_that_hangs_is_found_and_replaced(tmp_path: Path, one_process: Any) -> None:
    """It sleeps for an hour; the other one gives up after three seconds, and the agent starts both again."""
    fault = "if rank == 1 and restart_count() == 0 and steps == 5: time.sleep(3600)"
    found = launch(tmp_path, fault, nproc_per_node=2, max_restarts=1, environment={"HANG": "3"})
    assert close(found.losses, one_process[1])
    assert len(found.attempts) == 2


def test_a_step_that_always_fails_is_not_tried_for_ever(tmp_path: Path) -> None:
    fault = "if rank == 1 and len(loader.batch_sampler) == 2: raise ArithmeticError('planted')"
    with pytest.raises(RuntimeError, match=r"RepeatedCrash on every rank.*step 4 has failed twice"):
        launch(tmp_path, fault, nproc_per_node=2, max_restarts=5)
    attempts = Journal(tmp_path / "checkpoints" / "journal.jsonl").attempts()
    assert [(attempt.first_step, attempt.last_step) for attempt in attempts] == [(0, 3), (3, 3)]


def test_the_torchrun_command_does_the_same(tmp_path: Path, one_process: Any) -> None:
    fault = "if restart_count() == 0 and rank == 1 and steps == 5: os.kill(os.getpid(), signal.SIGKILL)"
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    config = ElasticConfig(program, 2, 1, 1, max_restarts=5, rdzv_endpoint="localhost:0")
    environment = {
        "FOLDER": str(tmp_path),
        "FAULT": fault,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = config.torchrun_command()
    assert "--max-restarts=5" in command
    assert "--max-restarts=3" in ElasticConfig(program).torchrun_command(), "unless another number is asked for"
    ended = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    journal = Journal(tmp_path / "journal.jsonl")
    assert [attempt.first_step for attempt in journal.attempts()] == [0, 3]
    assert close(journal.losses(), one_process[1])


def test_another_global_batch_that_leaves_a_rank_without_a_sample_is_refused() -> None:
    """25 samples, 14 are done in batches of 7: in batches of 5 the last one has a single sample."""
    before = GlobalBatchSampler(25, 7, 2, 0)
    before.advance()
    before.advance()
    with pytest.raises(ValueError, match="global_batch_size must leave each of the 2 ranks a sample, got 5"):
        GlobalBatchSampler(25, 5, 2, 0).load_state_dict(before.state_dict())
    GlobalBatchSampler(25, 5, 1, 0).load_state_dict(before.state_dict())


@settings(max_examples=30, deadline=None)
@given(size=st.integers(4, 40), batch=st.integers(4, 9), ranks=st.integers(1, 4), seed=st.integers(0, 9))
def test_global_batches_do_not_depend_on_the_number_of_ranks(size: int, batch: int, ranks: int, seed: int) -> None:
    batch = min(batch, size)
    alone = GlobalBatchSampler(size, batch, 1, 0, seed, drop_last=True)
    alone.set_epoch(1)
    several = [GlobalBatchSampler(size, batch, ranks, rank, seed, drop_last=True) for rank in range(ranks)]
    for sampler in several:
        sampler.load_state_dict({**alone.state_dict(), "position": batch})
    parts = [sorted(index for share in shares for index in share) for shares in zip(*several, strict=True)]
    assert parts == [sorted(batch) for batch in list(alone)[1:]]


def test_a_journal_forgets_what_a_restart_has_undone_and_a_line_that_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.begin(2, 0)
    for step in range(1, 6):
        journal.record(step, 0, float(step))
    with journal.path.open("a") as file:
        file.write(json.dumps({"step": 6, "epoch": 0, "loss": 6.0})[:-5])
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    journal.begin(2, 3)
    assert journal.losses() == {1: 1.0, 2: 2.0, 3: 3.0}
    journal.record(4, 0, 4.5)
    assert journal.losses()[4] == 4.5
    assert journal.steps_lost() == [2]
    assert [attempt.last_step for attempt in journal.failures()] == [5, 4]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert journal.failures() == []


@pytest.mark.parametrize("minutes", [5, 20, 60])
def test_goodput_is_that_of_simulated_failures(minutes: int) -> None:
    module = solution()
    for checkpoint, restart in ((60.0, 300.0), (5.0, 0.0)):
        job = (60.0 * minutes, checkpoint, restart, LLAMA_3.gpu_mtbf_seconds, 16_384)
        assert abs(module.goodput(*job) - simulated_goodput(*job, failures=20_000, seed=1)) < 0.01


def test_dalys_interval_is_the_best_one() -> None:
    module = solution()
    job = (LLAMA_3.gpu_mtbf_seconds, 16_384)
    young, daly = module.young_daly_interval(600.0, *job)
    shares = {seconds: module.goodput(seconds, 600.0, 300.0, *job) for seconds in range(1000, 8000, 10)}
    best = max(shares, key=lambda seconds: shares[seconds])
    assert abs(daly - best) < 15
    assert abs(young - best) > 100
