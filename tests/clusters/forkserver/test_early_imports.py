"""Modules that take long to import are there for programs that need them, and not waited for by others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from waiting import wait_until

from labkit import Job, local
from labkit.clusters.forkserver.client import ForkServer
from labkit.torch_versions import early_imports

LARGEST = early_imports.MODULES[0]
IMPORTED = f"import sys; {LARGEST!r} in sys.modules"


def run(forkserver: ForkServer, source: str) -> bool:
    (value,) = local(nproc_per_node=1, forkserver=forkserver).run(Job(source=source)).raise_if_failed().values
    return bool(value)


@pytest.fixture
def forkserver() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


def test_imported_before_the_fork_for_a_program_that_names_a_user_of_them(forkserver: ForkServer) -> None:
    assert run(forkserver, f"# optimizer\n{IMPORTED}")


def test_not_imported_for_a_shipped_module_that_the_program_does_not_name(forkserver: ForkServer) -> None:
    modules = {"phase/trainer": "import torch.optim", "phase/loop": "from labkit.exercises import trainer"}

    def imported(source: str) -> bool:
        job = Job(source=source, modules=modules)
        (value,) = local(nproc_per_node=1, forkserver=forkserver).run(job).raise_if_failed().values
        return bool(value)

    assert not imported(f"# a_trainer\n{IMPORTED}")
    assert imported(f"# loop, which uses trainer\n{IMPORTED}")


def test_ranks_collect_garbage_though_the_imports_before_them_did_not(forkserver: ForkServer) -> None:
    assert run(forkserver, "import gc; gc.isenabled()")


def test_imported_when_idle(forkserver: ForkServer) -> None:
    # it begins when two seconds have passed without a request
    wait_until(lambda: run(forkserver, IMPORTED), pause_seconds=3)


def test_names_in_pickled_functions_and_module_texts_count() -> None:
    import torch

    def train() -> None:
        torch.optim.SGD([torch.ones(1)], lr=1.0)

    def add() -> None:
        torch.ones(1).add_(1)

    function = [Job.calling(f).function or b"" for f in (train, add)]
    assert [early_imports.likely_used_by([pickled]) for pickled in function] == [True, False]
    assert early_imports.likely_used_by(["x = 1", "from torch.distributed.fsdp import fully_shard"])
