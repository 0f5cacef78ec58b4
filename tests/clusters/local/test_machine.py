"""Numbers of ranks, GPUs and threads: derived from a simulated machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit import InvalidJob, Job, local
from labkit.clusters.local import machine


@pytest.fixture
def has(monkeypatch: pytest.MonkeyPatch):
    """Set what the machine has."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def said(gpus: int = 0, cores: int = 8) -> None:
        monkeypatch.setattr(machine, "count_gpus", lambda: gpus)
        monkeypatch.setattr(machine, "cores", lambda: cores)

    return said


def seen(names: list[str], **job: object) -> list[object]:
    source = f"import os\n[os.environ.get(name) for name in {names}]"
    return local().run(Job(source=source, **job)).raise_if_failed().values  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "gpus", "ranks"), [("cpu", 2, 3), ("gpu", 2, 2), ("auto", 2, 2), ("auto", 0, 3), ("cpu", 0, 3)]
)
def test_torchruns_words_are_numbers(has, word: str, gpus: int, ranks: int) -> None:
    has(gpus, cores=3)
    assert seen(["WORLD_SIZE"], nproc_per_node=word) == [[str(ranks)]] * ranks
    assert local(nproc_per_node=word).nproc_per_node == ranks  # type: ignore[arg-type]


def test_gpu_without_a_gpu_says_so_and_what_to_ask_for(has, monkeypatch: pytest.MonkeyPatch) -> None:
    has(gpus=0)
    with pytest.raises(InvalidJob, match="there is no GPU here that torch can use; CUDA_VISIBLE_DEVICES is '3'"):
        seen([], nproc_per_node="gpu", environment={"CUDA_VISIBLE_DEVICES": "3"})
    with pytest.raises(InvalidJob, match=r"torch can use\. auto takes GPUs where there are any, else cores"):
        local(nproc_per_node="gpu")
    with pytest.raises(InvalidJob, match="a number or one of gpu, cpu, auto, got 'tpu'"):
        local(nproc_per_node="tpu")  # type: ignore[arg-type]


@pytest.mark.parametrize(("visible", "count"), [("0,1", 2), ("2", 1), ("", 0), ("0,-1,1", 1), ("0,1,2,3,4,5", 4)])
def test_a_jobs_own_choice_of_gpus_counts(has, visible: str, count: int) -> None:
    has(gpus=4)
    assert machine.gpus({"CUDA_VISIBLE_DEVICES": visible}) == count
    assert machine.gpus({}) == 4


@pytest.mark.parametrize(
    ("gpus", "asked", "used", "notes"),
    [
        (0, "", "gloo", ()),
        (0, "'nccl'", "gloo", ("2 ranks, 0 GPUs: gloo is used, not nccl",)),
        (1, "", "gloo", ("2 ranks, 1 GPU: gloo is used, not nccl; ranks share GPUs: cuda:{LOCAL_RANK % 1}",)),
        (1, "'gloo'", "gloo", ()),
    ],
)
def test_more_ranks_than_gpus_use_gloo_and_say_so(has, gpus: int, asked: str, used: str, notes: tuple[str]) -> None:
    has(gpus)
    source = f"import torch.distributed as dist\ndist.init_process_group({asked})\ndist.get_backend()"
    run = local(nproc_per_node=2).run(Job(source=source)).raise_if_failed()
    assert run.values == [used] * 2 and run.notes == notes


def test_one_rank_a_gpu_leaves_the_choice_to_torch_which_takes_nccl(has) -> None:
    has(gpus=2)
    cluster = local(nproc_per_node=2)
    options = cluster._processes(Job(source="0"))["options"]
    assert options["backend"] == "" and options["gpus"] == options["local_world_size"] == 2


def test_simulated_nodes_have_gpus_of_their_own(has, monkeypatch: pytest.MonkeyPatch) -> None:
    has(gpus=4)
    names = ["LOCAL_RANK", "CUDA_VISIBLE_DEVICES"]
    assert seen(names, nnodes=2) == [["0", "0,1"], ["1", "0,1"], ["0", "2,3"], ["1", "2,3"]]
    assert seen(names, nnodes=1, nproc_per_node=4)[3] == ["3", None]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,5,3,1")
    assert seen(names, nnodes=2)[2] == ["0", "3,1"]


def test_cores_are_shared_among_the_ranks_unless_the_environment_says_otherwise(
    has, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(cores=8)
    source = "import os, torch\n(os.environ['OMP_NUM_THREADS'], torch.get_num_threads())"
    threads = {n: local(nproc_per_node=n).run(Job(source=source)).values[0] for n in (1, 3, 4, 9)}
    assert threads == {1: ("8", 8), 3: ("2", 2), 4: ("2", 2), 9: ("1", 1)}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert seen(["OMP_NUM_THREADS"], nproc_per_node=1) == [["3"]]
    assert seen(["OMP_NUM_THREADS"], nproc_per_node=1, environment={"OMP_NUM_THREADS": "5"}) == [["5"]]


def test_a_quota_of_the_control_group_counts_as_so_many_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(64)))
    assert machine.cores() == 64
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.cores() == 64
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert machine.cores() == 2


def test_counting_gpus_makes_no_context() -> None:
    import torch

    machine.gpus({})
    assert not torch.cuda.is_initialized()
