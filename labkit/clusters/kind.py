"""Declaration of one kind of clusters by its package; labkit.clusters.kinds has all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labkit.clusters.cluster import Cluster
from labkit.command_line.finding import Finding


@dataclass(frozen=True)
class Option:
    """An option of `%cluster`. Kinds that take the same option declare equal ones."""

    flag: str
    """`--nnodes`; a name without dashes is positional."""
    help: str
    """One line, without the kinds that take it."""
    type: Callable[[str], Any] = str
    """Parses the value; raises `argparse.ArgumentTypeError`."""
    metavar: str | None = None
    short: str = ""
    """Another spelling: `-n`."""
    keyword: str = ""
    """Keyword argument of `ClusterKind.make`, if it is not the flag's name."""
    repeatable: bool = False
    """Whether it may be given several times: its value is a list."""
    switch: bool = False
    """Whether it is given without a value, and is then True."""
    takers: str = ""
    """Words for the kinds that take it, instead of their names: `real ranks`."""
    words: tuple[str, ...] = ()
    """Values that the Tab key offers."""

    @property
    def name(self) -> str:
        """Name of its value, among the options of `ClusterKind.make`."""
        return self.keyword or self.flag.lstrip("-").replace("-", "_")

    @property
    def is_positional(self) -> bool:
        return not self.flag.startswith("-")


@dataclass(frozen=True)
class ClusterKind:
    """A kind of clusters: what `%cluster NAME` offers, and a row of `labkit doctor`."""

    name: str
    cluster: Callable[[], type]
    """Returns the class of its clusters, imported only then; its abilities are protocols of clusters/cluster.py."""
    make: Callable[..., Cluster]
    """Makes a cluster from the values of `options` that are given. Raises `InvalidJob` for one that is not valid."""
    options: tuple[Option, ...]
    """Options that it takes, in the order of `%cluster`'s help."""
    example: str
    """Arguments of `%cluster` that its help shows after the name: `--partition gpu --nnodes 2`."""
    title: str
    """Title of its row in `labkit doctor`."""
    examine: Callable[[], Finding]
    """Tests what works on this machine, for `labkit doctor`."""
    counts_ranks: bool = False
    """Whether `--nproc-per-node` may be one of torchrun's words, which depend on this machine: `gpu`, `cpu`, `auto`."""
