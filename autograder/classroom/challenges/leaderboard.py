"""Records of judged entries, one folder each, and the standings that follow from them.

    challenges/seed                      of all instances; only the classroom knows it
    challenges/NAME/bounds.json          values that no entry can beat, by instance
    challenges/NAME/withdrawals.json     time up to which each author's entries are withdrawn
    challenges/NAME/ID/entry.py          the text that was judged
    challenges/NAME/ID/storm-1.json      the trace of each instance
    challenges/NAME/ID/result.json       written last: without it the entry is not judged
    challenges/final/                    the same files of challenges that are over, with a seed of its own

An entry judged again, after a kill, gets the same ID and the same result.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from autograder.intake.keeping import write_json
from labkit.challenges.challenge import BOUND, Outcome, Row
from labkit.trace.perfetto import write_perfetto

_LARGEST_TRACE = 50_000_000
"""Bytes of one file; a larger one is not kept."""
_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Judgement:
    """Result of judging an entry."""

    outcomes: Sequence[Outcome] = field(repr=False)
    fault: str = ""
    """Why it does not count, for its author. Empty if it counts."""
    fault_seen: str = ""
    """Fault on the failed instance, for the instructor alone: an entry could print a hidden instance in it."""

    @property
    def values(self) -> dict[str, float]:
        """Values in the challenge's unit, by instance."""
        return {outcome.instance: outcome.value for outcome in self.outcomes}


@dataclass(frozen=True)
class Result:
    """One judged entry."""

    id: str
    """Part of addresses; says nothing about the author."""
    author: str
    """User name, shown to nobody; empty for the course's own entries."""
    name: str
    """Name in the standings."""
    finished: str
    """Time of judging: UTC, ISO 8601."""
    values: dict[str, float]
    """Values in the challenge's unit, by instance; empty if the entry does not count."""
    fault: str = ""
    """Why it does not count, for its author."""
    fault_seen: str = ""
    """Fault on the failed instance, for the instructor."""
    sent: float = 0.0
    """Time of its receipt, in seconds since 1970; 0 for the course's own entries."""


@dataclass(frozen=True)
class Standing:
    """A line of the standings."""

    row: Row
    result: Result | None
    """Judged entry; None for the bound."""
    ratio: float
    """Score divided by the bound's."""
    place: int
    """From 1; equal scores share one. 0 for the bound."""


class Leaderboard:
    """Judged entries and standings, in `folder`, which is kept with the classroom and closed to learners."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def final(self) -> Leaderboard:
        """The standings of challenges that are over, on instances that no entry has run on before.

        An entry can tell by its score what it has seen of a hidden instance, and a later one be made for that.
        """
        return Leaderboard(self._folder / "final")

    def seed(self) -> int:
        """Return the seed of the instances, drawn at the first call: too large to be found by trying."""
        path = self._folder / "seed"
        if not path.is_file():
            self._folder.mkdir(parents=True, exist_ok=True)
            making = path.with_name(".seed")
            making.write_text(str(2**62 + secrets.randbits(62)))
            making.chmod(0o600)
            os.replace(making, path)
        return int(path.read_text())

    def keep_bounds(self, challenge: str, bounds: dict[str, float]) -> None:
        folder = self._folder / challenge
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "bounds.json", bounds)

    def bounds(self, challenge: str) -> dict[str, float]:
        """Return the values that no entry can beat, by instance; empty before the course's first entry is judged."""
        path = self._folder / challenge / "bounds.json"
        values: dict[str, float] = json.loads(path.read_text()) if path.is_file() else {}
        return values

    def results(self, challenge: str) -> list[Result]:
        """Return all judged entries, oldest first."""
        paths = (self._folder / challenge).glob("*/result.json")
        return sorted((Result(**json.loads(path.read_text())) for path in paths), key=lambda result: result.finished)

    def names_of_others(self, challenge: str, author: str) -> set[str]:
        """Return all names in the standings that `author` cannot have."""
        return {result.name for result in self._standing(challenge) if result.author != author}

    def withdraw(self, challenge: str, author: str, sent: float) -> None:
        """Take all entries of `author` that were received up to this time out of the standings. Their files stay."""
        folder = self._folder / challenge
        folder.mkdir(parents=True, exist_ok=True)
        times = self._withdrawals(challenge)
        write_json(folder / "withdrawals.json", {**times, author: max(sent, times.get(author, sent))})

    def is_withdrawn(self, challenge: str, author: str, sent: float) -> bool:
        """Return whether an entry that was received at this time is withdrawn."""
        return bool(author) and sent <= self._withdrawals(challenge).get(author, -math.inf)

    def _withdrawals(self, challenge: str) -> dict[str, float]:
        path = self._folder / challenge / "withdrawals.json"
        times: dict[str, float] = json.loads(path.read_text()) if path.is_file() else {}
        return times

    def _standing(self, challenge: str) -> list[Result]:
        """Return the judged entries that are not withdrawn, oldest first."""
        return [
            result for result in self.results(challenge) if not self.is_withdrawn(challenge, result.author, result.sent)
        ]

    def id_of(self, label: str) -> str:
        """Return the ID of an entry: a keyed hash of the name of its folder in the exchange."""
        return hashlib.blake2b(label.encode(), key=str(self.seed()).encode(), digest_size=8).hexdigest()

    def keep(
        self,
        challenge: str,
        label: str,
        author: str,
        name: str,
        source: str,
        judged: Judgement,
        at: str,
        sent: float = 0.0,
    ) -> Result:
        """Keep an entry with its traces; it appears whole or not at all. label: see `id_of`."""
        values = {} if judged.fault else judged.values
        result = Result(self.id_of(label), author, name, at, values, judged.fault, judged.fault_seen, sent)
        folder = self._folder / challenge / result.id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "entry.py").write_text(source)
        for outcome in judged.outcomes:
            if outcome.trace is not None:
                path = write_perfetto(outcome.trace, folder / _file(outcome.instance))
                if path.stat().st_size > _LARGEST_TRACE:
                    path.unlink()
        write_json(folder / "result.json", asdict(result))
        return result

    def source(self, challenge: str, id: str) -> str:
        """Return the text of a judged entry."""
        return (self._folder / challenge / id / "entry.py").read_text()

    def trace(self, challenge: str, id: str, instance: str) -> Path | None:
        """Return the file of a trace; None if there is none. The arguments may come from an address."""
        known = {name for result in self._standing(challenge) if result.id == id for name in result.values}
        if _ID.fullmatch(id) is None or instance not in known:
            return None
        path = self._folder / challenge / id / _file(instance)
        return path if path.is_file() else None

    def standings(self, challenge: str) -> list[Standing]:
        """Return the bound, and the best entry of each author under the name of the newest; the lowest score first."""
        bounds = self.bounds(challenge)
        if not bounds:
            return []
        bound = Row(BOUND, bounds)
        best: dict[str, Result] = {}
        names: dict[str, str] = {}
        for result in self._standing(challenge):
            author = result.author or f" {result.name}"  # no user name begins with a space
            names[author] = result.name
            if result.values.keys() == bounds.keys() and (
                author not in best or Row("", result.values).score < Row("", best[author].values).score
            ):
                best[author] = result
        rows = [(Row(names[author], result.values), result) for author, result in best.items()]
        rows.sort(key=lambda ranked: ranked[0].score)
        standings = [Standing(bound, None, 1.0, 0)]
        for number, (row, result) in enumerate(rows, start=1):
            before = standings[-1]
            is_equal = before.place > 0 and math.isclose(row.score, before.row.score)  # up to rounding of the mean
            place = before.place if is_equal else number
            standings.append(Standing(row, result, row.score / bound.score, place))
        return standings


def _file(instance: str) -> str:
    return f"{instance.replace(' ', '-')}.json"
