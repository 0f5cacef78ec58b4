"""Exercise 01: its means compared with the library's, and the ways in which a program can be started."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, virtual
from labkit.course.phase1_data_parallel.process_group.given import launchers
from labkit.linux.free_port import free_port

EXERCISE = catalogue.Exercise("phase1_data_parallel/process_group")
SOLUTION = EXERCISE.source("solution")[0]

BESIDE_THE_LIBRARY = """
import math
import torch.distributed as dist
from labkit.exercises import process_group

process_group.setup_distributed(process_group.DDPConfig.from_env(backend="{backend}"))
values, weights = {values}, {weights}
rank, size = dist.get_rank(), dist.get_world_size()
means = process_group.all_reduce_metrics({{"loss": values[rank], "same": 1}}, weight=weights[rank])
gathered = [None] * size
dist.all_gather_object(gathered, (values[rank], weights[rank]))
total = math.fsum(w for _, w in gathered)
wanted = math.fsum(v * w for v, w in gathered) / total if total else math.nan
[means["loss"], wanted, means["same"], total]
"""


@settings(max_examples=20)
@given(
    ranks=st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 64)), min_size=1, max_size=7),
    backend=st.sampled_from(["gloo", "nccl"]),
)
def test_means_are_those_of_gathered_objects(ranks: list[tuple[float, int]], backend: str) -> None:
    values, weights = [list(column) for column in zip(*ranks, strict=True)]
    cell = BESIDE_THE_LIBRARY.format(backend=backend, values=values, weights=weights)
    run = virtual(nproc_per_node=len(ranks)).run(
        Job(source=cell, modules={EXERCISE.name: SOLUTION}, timeout=BROKEN_SECONDS)
    )
    for mean, wanted, same, total in run.raise_if_failed().values:
        if total:
            assert mean == pytest.approx(wanted, rel=1e-12, abs=1e-6) and same == pytest.approx(1)
        else:
            assert mean != mean and wanted != wanted
    assert len({repr(value[0]) for value in run.values}) == 1


SCRIPT = """
from solutions.phase1_data_parallel.process_group import *

config = DDPConfig.from_env() if {launched} else DDPConfig()
if {launched}:
    setup_distributed(config)
with rank_zero_first():
    pass
barrier()
print(config.rank, config.world_size, config.local_rank, is_main_process(), all_reduce_metrics({{"rank": config.rank}}))
cleanup()
"""


def started(launched: bool, **variables: str) -> str:
    """Return what the script prints when started by hand with these variables."""
    ours = {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(catalogue.root())}
    plain = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LD_LIBRARY_PATH")}
    command = [sys.executable, "-c", SCRIPT.format(launched=launched)]
    done = subprocess.run(command, env=plain | ours | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_script_that_is_started_plainly_is_its_own_rank_0() -> None:
    assert started(False) == "0 1 0 True {'rank': 0.0}"


def test_a_script_that_mpirun_starts_knows_its_rank() -> None:
    mpi = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in (("RANK", 0), ("SIZE", 1), ("LOCAL_RANK", 0))}
    assert started(True, **mpi, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port())) == "0 1 0 True {'rank': 0.0}"


def test_scripts_that_srun_starts_meet_on_the_first_node() -> None:
    """As `srun -n 2` sets it for each of them; srun gives no MASTER_ADDR."""
    slurm = {
        "SLURM_NTASKS": "2", "SLURM_NODELIST": "localhost,gpu[03-05]", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0",
        "SLURM_STEP_TASKS_PER_NODE": "2", "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    with ThreadPoolExecutor() as pool:
        ranks = [
            pool.submit(started, True, **slurm, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank)) for rank in range(2)
        ]
        assert [rank.result() for rank in ranks] == ["0 2 0 True {'rank': 0.5}", "1 2 1 False {'rank': 0.5}"]


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu1", "gpu1"), ("gpu[03-05,9],cpu1", "gpu03"), ("a,b[1-2]", "a"), ("rack[2-3]n[10,12]", "rack2n10")],
)
def test_the_first_node_of_slurms_list(nodes: str, first: str) -> None:
    assert launchers.first_node(nodes) == first


def test_slurms_ranks_have_a_meeting_point_unless_they_are_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith(("SLURM_", "MASTER_", "OMPI_")) or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            monkeypatch.delenv(name)
    torchrun = {"rank": "RANK", "world_size": "WORLD_SIZE", "local_rank": "LOCAL_RANK"}
    assert launchers.variables_of(torchrun) is torchrun and not launchers.is_launched()
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert launchers.variables_of(torchrun) is launchers.SLURM and not launchers.is_launched()  # a batch script
    assert launchers.meeting_point(launchers.SLURM) == {}
    for name, value in {
        "STEP_ID": "2",
        "JOB_ID": "10005",
        "NODELIST": "gpu[3-4]",
        "STEP_TASKS_PER_NODE": "4(x2),3",
    }.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert launchers.is_launched() and launchers.ranks_on_machine() == 4
    assert launchers.meeting_point(launchers.SLURM) == {"init_method": "tcp://gpu3:20007"}
    monkeypatch.setenv("MASTER_ADDR", "gpu4")
    assert launchers.meeting_point(launchers.SLURM) == {}
    monkeypatch.setenv("RANK", "0")  # torchrun within a job of Slurm
    assert launchers.variables_of(torchrun) is torchrun


def test_a_backend_that_torch_was_not_built_with_is_refused_by_name() -> None:
    run = virtual(nproc_per_node=1).run(
        Job(
            source="from labkit.exercises import process_group\nprocess_group.DDPConfig(backend='carrier pigeons')",
            modules={EXERCISE.name: SOLUTION},
        )
    )
    assert run.first_failure is not None and run.first_failure.error is not None
    assert run.first_failure.error.type == "ValueError" and "carrier pigeons" in run.first_failure.error.message
