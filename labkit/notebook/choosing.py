"""`%cluster`: where cells run from now on."""

from __future__ import annotations

import argparse
import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from labkit.clusters import Cluster, InvalidJob
from labkit.clusters.local import local
from labkit.clusters.virtual import virtual
from labkit.clusters.virtual.faults import Fault, parse
from labkit.hardware import GPUS, LINKS, PRESETS, STORAGE
from labkit.notebook.magics import Magic, at_least_one

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

KINDS = ("virtual", "local")
_OPTIONS = {
    "virtual": (
        *("nnodes", "nproc_per_node", "gpu", "intra_node", "inter_node", "nics_per_node"),
        *("switch_gb_per_s", "nodes_per_rack", "oversubscription", "host_link", "storage", "faults", "fake"),
    ),
    "local": ("nnodes", "nproc_per_node", "backend"),
}


@dataclass
class Choice:
    """The cluster on which cells run: the learner's choice, until then two processes of this machine."""

    chosen: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        return self.chosen or local(nproc_per_node=2)

    def describe(self) -> str:
        """One line for people; says so when nothing was chosen."""
        return self.cluster.describe() + ("" if self.chosen else " (nothing else was chosen with %cluster)")


def magics(choice: Choice) -> list[Magic]:
    """`%cluster`, which sets `choice`."""

    def run(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
        given = {name: value for name, value in vars(options).items() if value is not None}
        kind = given.pop("kind", None)
        if kind is not None:
            choice.chosen = make(kind, given)
        elif given:
            raise InvalidJob(f"say which kind of cluster: %cluster {' or %cluster '.join(KINDS)}")
        print(choice.describe())

    magic = Magic(
        "cluster",
        run,
        """Choose where cells run from now on; without arguments, show it.

        %cluster virtual dgx-a100 --nnodes 4
        %cluster local --nproc-per-node 4
        """,
        words=lambda: [*KINDS, *PRESETS],
    )
    magic.option("kind", nargs="?", help=f"{' or '.join(KINDS)}")
    magic.option("preset", nargs="?", help=f"virtual only: a machine by name ({', '.join(PRESETS)})")
    magic.option("--nnodes", type=at_least_one, metavar="N", help="number of nodes")
    magic.option("-n", "--nproc-per-node", type=at_least_one, metavar="N", help="ranks on each node")
    magic.option("--gpu", help=f"virtual only: {', '.join(GPUS)}")
    magic.option("--intra-node", metavar="LINK", help=f"virtual only: link inside a node ({', '.join(LINKS)})")
    magic.option("--inter-node", metavar="LINK", help="virtual only: link between nodes")
    magic.option("--nics-per-node", type=at_least_one, metavar="N", help="virtual only: network cards of a node")
    magic.option("--switch-gb-per-s", type=float, metavar="X", help="virtual only: what a node's GPUs can exchange")
    magic.option("--nodes-per-rack", type=at_least_one, metavar="N", help="virtual only: nodes of one rack")
    magic.option("--oversubscription", type=float, metavar="X", help="virtual only: a rack's cards over its uplink")
    magic.option("--host-link", metavar="LINK", help="virtual only: link of each GPU to host memory")
    magic.option("--storage", help=f"virtual only: a node's storage ({', '.join(STORAGE)})")
    magic.option(
        "--fault", dest="faults", action="append", type=_fault, metavar="FAULT",
        help='virtual only, repeatable: "kill(3, at=0.5)", "slow(2, factor=1.5)", "link(node=1)", "jitter(seed=0)"',
    )  # fmt: skip
    magic.option(
        "--fake", action="store_const", const=True,
        help="virtual only: tensors have shapes only, so that a model of any size runs",
    )  # fmt: skip
    magic.option("--backend", help="local only: gloo or nccl")
    return [magic]


def _fault(text: str) -> Fault:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def make(kind: str, options: dict[str, object]) -> Cluster:
    """A cluster of `kind` with the magic's options. Raises `InvalidJob` or `UsageError` that says what does not fit."""
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, [*KINDS, *(f"virtual {name}" for name in PRESETS)], n=1, cutoff=0.5)
        offer = f"did you mean %cluster {near[0]}?" if near else f"there are: {', '.join(KINDS)}"
        raise UsageError(f"%cluster: {kind!r} is no kind of cluster; {offer}")
    preset = options.pop("preset", None)
    if kind == "local" and preset is not None:
        raise UsageError(f"%cluster: {preset!r} is one argument too many; presets are for virtual clusters")
    for name in options:
        if name not in _OPTIONS[kind]:
            raise UsageError(f"%cluster: --{name.replace('_', '-')} is no option of {kind} clusters")
    if kind == "local":
        return local(**options)  # type: ignore[arg-type]  # checked by the parser, and by local()
    return virtual(preset, **options)  # type: ignore[arg-type]  # checked by the parser, and by virtual()
