"""Exercise 01: its means compared with the library's, and the ways in which a program can be started."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, virtual
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


def test_a_backend_that_torch_was_not_built_with_is_refused_by_name() -> None:
    run = virtual(nproc_per_node=1).run(
        Job(
            source="from labkit.exercises import process_group\nprocess_group.DDPConfig(backend='carrier pigeons')",
            modules={EXERCISE.name: SOLUTION},
        )
    )
    assert run.first_failure is not None and run.first_failure.error is not None
    assert run.first_failure.error.type == "ValueError" and "carrier pigeons" in run.first_failure.error.message
