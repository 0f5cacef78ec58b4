"""`%cluster`: where cells run from now on."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from labkit.clusters import Cluster, InvalidJob, kinds
from labkit.clusters.cluster import DryRunCluster, PreparableCluster, ReleasableCluster, RemoteCluster
from labkit.clusters.local import local
from labkit.notebook.magics import Magic

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


@dataclass
class Choice:
    """The cluster on which cells run: the learner's choice; by default two processes on this machine."""

    chosen: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        return self.chosen or local(nproc_per_node=2)

    def release(self) -> bool:
        """Release the nodes that are kept between cells; return False when there are none."""
        return isinstance(self.chosen, ReleasableCluster) and self.chosen.release()

    def describe(self) -> str:
        """One-line description; mentions if it is the default."""
        return self.cluster.describe() + ("" if self.chosen else " (the default; %cluster chooses another)")


def magics(choice: Choice) -> list[Magic]:
    """`%cluster`, which sets `choice`."""

    def run(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
        given = {name: value for name, value in vars(options).items() if value is not None}
        kind, dry_run = given.pop("kind", None), given.pop("dry_run", False)
        if kind == "release" and not given:
            print("the nodes are released" if choice.release() else "no nodes are kept")
            return
        if dry_run:
            print(_dry_run(kind, given), end="")
            return
        if kind is not None:
            chosen = make(kind, given)
            try:
                if isinstance(chosen, RemoteCluster):
                    chosen.require()
            except InvalidJob as error:
                raise InvalidJob(f"{error}; cells still run on {choice.cluster.describe()}") from None
            choice.release()
            choice.chosen = chosen
            if isinstance(chosen, PreparableCluster):
                chosen.prepare()
        elif given:
            raise InvalidJob(f"name the kind of cluster: %cluster {' or %cluster '.join(kinds.registered())}")
        print(choice.describe())

    known, options = kinds.registered(), kinds.options()
    examples = [f"%cluster {kind.name} {kind.example}" for kind in known.values()]
    magic = Magic(
        "cluster",
        run,
        "\n".join(
            [
                "Choose where cells run from now on; without arguments, show the current cluster.",
                "",
                *examples,
                "%cluster release",
            ]
        ),
        words=lambda: [*known, "release", *(word for option, _ in options.values() for word in option.words)],
    )
    magic.option("kind", nargs="?", help=f"{' or '.join(known)}; or release: give up nodes that are kept")
    for option, takers in options.values():
        kinds.add_option(magic.option, option, takers if len(takers) < len(known) else ())
    magic.option(
        "--dry-run",
        action="store_const",
        const=True,
        help=f"{', '.join(kinds.with_ability(DryRunCluster))}: show what would be submitted, without choosing the "
        "cluster",
    )
    return [magic]


def _dry_run(name: str | None, given: dict[str, object]) -> str:
    able = kinds.with_ability(DryRunCluster)
    if name not in able:
        raise UsageError(f"%cluster: --dry-run is for {' and '.join(able)}, where jobs are submitted")
    cluster = make(name, given)
    assert isinstance(cluster, DryRunCluster)
    return cluster.dry_run()


def make(name: str, given: dict[str, object]) -> Cluster:
    """A cluster of kind `name` with the magic's options. Raises `InvalidJob` or `UsageError` if they do not fit."""
    try:
        return kinds.make(name, given, "%cluster ")
    except kinds.UnfitOption as error:
        raise UsageError(f"%cluster: {error}") from None
