"""Ranks on two nodes of a real Slurm: results, output and errors come back, and no job is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from slurm_rig import SlurmRig  # beside this file
from waiting import BROKEN_SECONDS

from labkit import Job, Run, slurm
from labkit.clusters import State
from labkit.clusters.slurm import SlurmCluster

HEAD = """\
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
"""
WAIT = "print('here', flush=True)\ntime.sleep(600)"


@pytest.fixture(scope="module")
def kept(running_rig: SlurmRig) -> Iterator[SlurmCluster]:
    """Two nodes of two ranks, held by one job for the tests that need nothing else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", running_rig.environment["SLURM_CONF"])
        cluster = slurm(nnodes=2, nproc_per_node=2, gpus_per_node=1, cpus_per_task=1, keep=600)
        yield cluster
        cluster.release()


@pytest.fixture
def nodes(kept: SlurmCluster, running_rig: SlurmRig, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    monkeypatch.setenv("SLURM_CONF", running_rig.environment["SLURM_CONF"])
    return kept


def run(cluster: SlurmCluster, source: str, **options: object) -> Run:
    return cluster.run(Job(source=source, filename="Cell In[3]", timeout=BROKEN_SECONDS, **options))  # type: ignore[arg-type]


def test_ranks_of_two_nodes_compute_together(nodes: SlurmCluster) -> None:
    printed: list[tuple[int, str, str]] = []
    states: list[State] = []
    source = HEAD + "x = torch.full((3,), float(rank))\ndist.all_reduce(x)\nprint('rank', rank, flush=True)\nx"
    job = Job(source=source, filename="Cell In[3]", timeout=BROKEN_SECONDS)
    result = nodes.run(job, lambda *what: printed.append(what), states.append).raise_if_failed()
    assert all(torch.equal(value, torch.full((3,), 6.0)) for value in result.values)
    assert sorted(printed) == [(rank, "stdout", f"rank {rank}\n") for rank in range(4)]
    reduced = [event for event in result.trace.events if event.operation == "all_reduce"]
    assert sorted(event.rank for event in reduced) == [0, 1, 2, 3]
    assert states[-1].phase == "running"


def test_each_node_is_another_machine(nodes: SlurmCluster, running_rig: SlurmRig) -> None:
    names = ["RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"]
    source = f"import os\n[os.uname().nodename, *[os.environ[name] for name in {names}]]"
    first, second = (node.name if running_rig.namespaces else os.uname().nodename for node in running_rig.nodes)
    assert run(nodes, source).values == [
        [first, "0", "0", "0", "2", "1"],
        [first, "1", "1", "0", "2", "1"],
        [second, "2", "0", "1", "2", "1"],
        [second, "3", "1", "1", "2", "1"],
    ]
    assert run(nodes, "import os\nos.environ['CUDA_VISIBLE_DEVICES']").values == ["0"] * 4


def test_a_second_run_is_of_the_same_job(nodes: SlurmCluster) -> None:
    source = "import os\nos.environ['SLURM_JOB_ID'], os.getppid()"
    first, second = run(nodes, source).values, run(nodes, source).values
    assert first[0][0] == second[0][0]
    assert f"job {first[0][0]} keeps" in nodes.describe()


def test_folder_path_and_environment_are_the_notebooks_of_now(
    nodes: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(nodes, "0")
    (tmp_path / "mine.py").write_text("answer = 42")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLOUR", "blue")
    assert (
        run(nodes, "import os, mine\n(mine.answer, os.getcwd(), os.environ['COLOUR'])").values
        == [(42, str(tmp_path), "blue")] * 4
    )


def test_an_error_on_a_remote_rank_names_its_line_and_variables(nodes: SlurmCluster) -> None:
    result = run(nodes, "\n" + HEAD + "if rank == 3:\n    raise ValueError('no data')\ndist.barrier()")
    assert result.diagnosis() == (
        "ValueError on rank 3 at Cell In[3], line 6: no data\n"
        "    raise ValueError('no data')\n"
        "    rank = 3, n = 4\n"
        "ranks 0-2 stopped because of it"
    )


def test_ranks_of_both_nodes_start_again(nodes: SlurmCluster) -> None:
    source = HEAD + "first = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n"
    source += "if rank == 3 and first:\n    raise ValueError('bad luck')\ndist.barrier()\n(rank, os.uname().nodename)"
    result = run(nodes, source, max_restarts=1).raise_if_failed()
    assert [rank for rank, _ in result.values] == list(range(4))
    assert result.values[0][1] == result.values[1][1], "a node's ranks are numbered one after the other"
    assert result.notes == ("restarted once after rank 3 failed: ValueError at Cell In[3], line 6",)


def test_a_hang_across_nodes_is_told_with_the_rank_that_is_missing(nodes: SlurmCluster) -> None:
    result = run(nodes, HEAD + "if rank == 3:\n    time.sleep(600)\ndist.barrier()", hang_timeout=2.0)
    assert result.stopped == "hang: no output and no progress for 2 s"
    assert [r.error.where for r in result.ranks if r.error] == ["Cell In[3], line 6"] * 3 + ["Cell In[3], line 5"]


def test_long_values_and_lines_come_whole(nodes: SlurmCluster) -> None:
    source = HEAD + "print('x' * 200_000)\ntorch.arange(500_000) + rank"
    result = run(nodes, source).raise_if_failed()
    assert [result.ranks[rank].output for rank in range(4)] == ["x" * 200_000 + "\n"] * 4
    assert torch.equal(result.values[3], torch.arange(500_000) + 3)


def test_an_interrupt_leaves_the_kept_nodes_but_no_rank(nodes: SlurmCluster, running_rig: SlurmRig) -> None:
    run(nodes, "0")
    job = running_rig.jobs()

    def interrupt(rank: int, stream: str, text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nodes.run(Job(source=HEAD + WAIT, timeout=BROKEN_SECONDS), interrupt)
    assert run(nodes, "0").ok
    assert running_rig.jobs() == job
