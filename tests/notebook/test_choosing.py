"""A kind of clusters that a package declares is one that `%cluster` offers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from labkit.clusters import Cluster, InvalidJob, Job, Run, kinds
from labkit.clusters.cluster import OnOutput, OnState
from labkit.clusters.kind import ClusterKind, Option
from labkit.clusters.local import local
from labkit.clusters.options import NNODES, at_least_one
from labkit.command_line.finding import Finding, State
from labkit.notebook import choosing
from labkit.notebook.choosing import Choice

_held = [True]


@dataclass(frozen=True)
class ToyCluster:
    """Bricks."""

    nnodes: int
    bricks: int
    nproc_per_node: int = 1
    kind: str = "toy"

    def describe(self) -> str:
        return f"toy: {self.nnodes} towers of {self.bricks} bricks"

    def run(self, job: Job, on_output: OnOutput | None = None, on_state: OnState | None = None) -> Run:
        return local(nproc_per_node=1).run(job, on_output, on_state)

    def require(self) -> None:
        if self.bricks > 9:
            raise InvalidJob("the box has 9 bricks")

    def dry_run(self) -> str:
        return "a plan\n"

    def release(self) -> bool:
        return _held.pop() if _held else False


def _make(nnodes: int = 1, bricks: int = 3) -> Cluster:
    return ToyCluster(nnodes, bricks)


KIND = ClusterKind(
    name="toy",
    cluster=lambda: ToyCluster,
    make=_make,
    options=(NNODES, Option("--bricks", "size of a tower", at_least_one, "N", words=("sandcastle",))),
    example="--bricks 4",
    title="toy cluster",
    examine=lambda: Finding(State.OK, "in the box"),
)


@pytest.fixture
def choice(monkeypatch: pytest.MonkeyPatch) -> Choice:
    monkeypatch.setattr(kinds, "MODULES", [*kinds.MODULES, __name__])
    return Choice()


@pytest.fixture
def shell(choice: Choice) -> InteractiveShell:
    shell = InteractiveShell()
    for magic in choosing.magics(choice):
        magic.register(shell)
    return shell


def test_a_registered_kind_can_be_chosen(
    shell: InteractiveShell, choice: Choice, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_line_magic("cluster", "toy --nnodes 2 --bricks 4")
    assert capsys.readouterr().out == "toy: 2 towers of 4 bricks\n"
    assert choice.cluster == ToyCluster(2, 4)
    assert choice.cluster.run(Job(source="6 * 7")).values == [42]
    shell.run_line_magic("cluster", "toy --dry-run")
    shell.run_line_magic("cluster", "release")
    shell.run_line_magic("cluster", "release")
    assert capsys.readouterr().out == "a plan\nthe nodes are released\nno nodes are kept\n"


def test_messages_and_help_know_a_registered_kind(shell: InteractiveShell, choice: Choice) -> None:
    for line, answer in {
        "toy --bricks 0": "--bricks: expected a whole number of at least 1",
        "toy --bricks 10": "the box has 9 bricks; cells still run on local: 2 processes",
        "toy --gpu t4": "--gpu is not an option of toy clusters",
        "local --bricks 4": "--bricks is not an option of local clusters",
        "virtual --dry-run": "--dry-run is for slurm and kubernetes and toy",
        "toi": "did you mean %cluster toy?",
    }.items():
        with pytest.raises(UsageError, match=answer):
            shell.run_line_magic("cluster", line)
    (magic,) = choosing.magics(choice)
    assert {"toy", "sandcastle"} <= set(magic.words())
    shown = " ".join(str(shell.find_line_magic("cluster").__doc__).split())
    assert "%cluster toy --bricks 4" in shown and "--bricks N toy only: size of a tower" in shown
    assert "virtual, local, slurm, kubernetes: ranks on each node" in shown
    assert "--nnodes N number of nodes" in shown


def test_kinds_agree_on_the_options_that_they_share(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds.options()
    monkeypatch.setattr(f"{__name__}.KIND", replace(KIND, options=(Option("--nnodes", "number of towers"),)))
    with pytest.raises(ValueError, match="--nnodes of toy clusters differs from that of virtual, local"):
        kinds.options()
