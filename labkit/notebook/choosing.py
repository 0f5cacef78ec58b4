"""`%cluster`: where cells run from now on."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from labkit.clusters import Cluster, InvalidJob, kinds
from labkit.clusters.cluster import DryRunCluster, ReleasableCluster, RemoteCluster
from labkit.clusters.kind import Option
from labkit.clusters.local import local
from labkit.clusters.options import NPROC_PER_NODE
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
        _add(magic, option, takers if len(takers) < len(known) else ())
    magic.option(
        "--dry-run",
        action="store_const",
        const=True,
        help=f"{', '.join(kinds.with_ability(DryRunCluster))}: show what would be submitted, without choosing the "
        "cluster",
    )
    return [magic]


def _add(magic: Magic, option: Option, takers: Sequence[str]) -> None:
    """Add an option; its help names the kinds that take it, unless all do."""
    one = option.takers or (takers[0] if len(takers) == 1 else "")
    conditions = [f"{one} only"] if one else list(takers)
    if option.repeatable:
        conditions.append("repeatable")
    text = ": ".join([*([", ".join(conditions)] if conditions else []), option.help])
    if option.is_positional:
        magic.option(option.flag, nargs="?", type=option.type, help=text)
        return
    flags = [option.short, option.flag] if option.short else [option.flag]
    if option.switch:
        magic.option(*flags, dest=option.name, action="store_const", const=True, help=text)
    else:
        action = "append" if option.repeatable else "store"
        magic.option(*flags, dest=option.name, action=action, type=option.type, metavar=option.metavar, help=text)


def _dry_run(name: str | None, given: dict[str, object]) -> str:
    able = kinds.with_ability(DryRunCluster)
    if name not in able:
        raise UsageError(f"%cluster: --dry-run is for {' and '.join(able)}, where jobs are submitted")
    cluster = make(name, given)
    assert isinstance(cluster, DryRunCluster)
    return cluster.dry_run()


def make(name: str, given: dict[str, object]) -> Cluster:
    """A cluster of kind `name` with the magic's options. Raises `InvalidJob` or `UsageError` if they do not fit."""
    known, options = kinds.registered(), kinds.options()
    if name not in known:
        pairs = [f"{taker} {word}" for option, takers in options.values() for taker in takers for word in option.words]
        near = difflib.get_close_matches(name, [*known, *pairs], n=1, cutoff=0.5)
        offer = f"did you mean %cluster {near[0]}?" if near else f"available: {', '.join(known)}"
        raise UsageError(f"%cluster: unknown kind of cluster {name!r}; {offer}")
    kind = known[name]
    for argument, value in given.items():
        option, takers = options[argument]
        if name in takers:
            continue
        if option.is_positional:
            raise UsageError(
                f"%cluster: unexpected argument {value!r}; {option.flag}s are for {' and '.join(takers)} clusters"
            )
        raise UsageError(f"%cluster: {option.flag} is not an option of {name} clusters")
    if not kind.counts_ranks and isinstance(words := given.get(NPROC_PER_NODE.name), str):
        able = " and ".join(other.name for other in known.values() if other.counts_ranks)
        raise UsageError(f"%cluster: {NPROC_PER_NODE.flag} {words} is for {able} clusters; on {name}, give a number")
    return kind.make(**given)
