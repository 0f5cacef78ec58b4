"""Parts that all challenges have in common. Nothing here imports torch: `labkit challenge` lists them at once."""

from __future__ import annotations

import importlib
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from labkit.trace import Trace

if TYPE_CHECKING:
    from labkit.clusters import Cluster

STANDINGS = Path(__file__).with_name("standings.toml")
"""Recorded scores of the course's entries, equal on every machine; `benchmarks/challenges.py` writes it."""
BOUND = "bound"
"""Name of the row that no entry can beat."""


@dataclass(frozen=True)
class Outcome:
    """An entry on one instance of a challenge."""

    instance: str
    value: float
    """Result in the challenge's unit; NaN if the entry failed."""
    fault: str = ""
    """Reason why it does not count: which rank failed, at which line, or which values are wrong. Empty if it counts."""
    notes: tuple[str, ...] = ()
    """Facts to print, such as the bytes sent."""
    trace: Trace | None = None


def on_this_machine(**options: Any) -> Cluster:
    """Make virtual ranks that are processes of this machine and cannot influence virtual time."""
    from labkit.clusters.virtual import virtual

    return virtual(**options, ranks="processes", account=False, trusting=False)


_Instance = TypeVar("_Instance")


def outcomes_until_fault(
    instances: Iterable[tuple[str, _Instance]],
    advance: Callable[[str], None],
    measured: Callable[[_Instance], Outcome],
) -> list[Outcome]:
    """Measure an entry on these named instances, in turn; the last outcome is the first that has a fault, if any.

    advance: called with the name of each instance before it is measured.
    """
    outcomes: list[Outcome] = []
    for name, instance in instances:
        advance(name)
        outcomes.append(replace(measured(instance), instance=name))
        if outcomes[-1].fault:
            break
    return outcomes


class Race(Protocol):
    """A challenge's module of this name: template, instances, and how an entry is measured."""

    TEMPLATE: str

    def instances(self, seed: int | None = None) -> Sequence[str]:
        """Describe the published instances, or others of the same family, drawn from a seed; one a line."""

    def bounds(self, seed: int | None = None) -> Mapping[str, float]:
        """Return for each of these instances the value that no entry can beat."""

    def measure(
        self,
        source: str,
        name: str,
        advance: Callable[[str], None],
        seed: int | None = None,
        make: Callable[..., Cluster] = on_this_machine,
    ) -> Sequence[Outcome]:
        """Run the text of an entry on these instances. make: takes the options of `virtual`, and makes the ranks."""


@dataclass(frozen=True)
class Challenge:
    """An open problem."""

    name: str
    title: str
    module: str
    """Module with its `TEMPLATE`, `instances` and `measure`."""
    scale: float
    """Factor from measured values to printed ones."""
    unit: str
    """Unit of printed values."""

    def load(self) -> Race:
        """Import the module that measures entries."""
        return importlib.import_module(self.module)

    def standings(self) -> list[Row]:
        """Return the recorded rows: the bound, and the course's own entries."""
        recorded = tomllib.loads(STANDINGS.read_text())[self.name]
        return [Row(name, values) for name, values in recorded.items()]


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    values: Mapping[str, float]
    """Values by instance."""

    @property
    def score(self) -> float:
        """Geometric mean over the instances: a tenth less on one counts as a tenth less on any other."""
        return math.exp(sum(map(math.log, self.values.values())) / len(self.values))


CHALLENGES = (
    Challenge(
        "all_reduce",
        "the fastest all-reduce on irregular clusters: unequal links, one slow node",
        "labkit.challenges.all_reduce.race",
        1e6,
        "us",
    ),
    Challenge(
        "goodput",
        "the highest goodput under a storm of faults: nodes that crash, come back and slow down",
        "labkit.challenges.goodput.race",
        1.0,
        "s",
    ),
    Challenge(
        "step_13b",
        "the shortest step of a model with 13 billion parameters on 32 GPUs that fits",
        "labkit.challenges.step_13b.race",
        1.0,
        "s",
    ),
)


def find(name: str) -> Challenge:
    """Return the challenge of this name. Raises ValueError that lists all."""
    for challenge in CHALLENGES:
        if challenge.name == name:
            return challenge
    names = ", ".join(challenge.name for challenge in CHALLENGES)
    raise ValueError(f"no challenge is called {name!r}; there are: {names}")


def table(challenge: Challenge, rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table, the lowest score first, with the ratio of each score to the bound's."""
    ranked = sorted(rows, key=lambda row: row.score)
    bound = next((row.score for row in rows if row.name == BOUND), math.nan)
    instances = list(ranked[0].values)
    width = max(len(row.name) for row in rows)
    widths = [max(len(instance), 7) for instance in instances]
    heads = "  ".join(f"{text:>{size}}" for text, size in zip(instances, widths, strict=True))
    lines = [f"{'':{width}}  {heads}  {'score, ' + challenge.unit:>9}  x bound"]
    for row in ranked:
        values = [f"{row.values[at] * challenge.scale:{size}.1f}" for at, size in zip(instances, widths, strict=True)]
        score = f"{row.score * challenge.scale:9.1f}  {row.score / bound:7.2f}"
        lines.append(f"{row.name:{width}}  {'  '.join(values)}  {score}")
    return lines
