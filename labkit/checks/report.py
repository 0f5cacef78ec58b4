"""Results of all checks of an exercise and their rendering as text; report_html.py renders them as HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from labkit.checks.check_result import CheckResult, number
from labkit.checks.report_html import report_html
from labkit.lab_failed import LAB_FAILED


@dataclass(frozen=True)
class Report:
    """Results of all checks of one exercise."""

    exercise: str
    results: Sequence[CheckResult]
    seed: int
    """Seed that repeats the same inputs: `labkit check NAME --seed SEED`. 0: not shown."""
    title: str = ""
    """The module and the cluster: `your module, on virtual ranks`."""

    @property
    def points(self) -> float:
        """Points of all checks that could be judged."""
        return math.fsum(result.points for result in self.results if result.counts)

    @property
    def all_points(self) -> float:
        """Points of all checks, including those that could not be judged."""
        return math.fsum(result.points for result in self.results)

    @property
    def earned(self) -> float:
        return math.fsum(result.earned for result in self.results)

    @property
    def marks(self) -> float:
        """`earned`, scaled from `points` to `all_points`."""
        if self.points in (0, self.all_points):
            return self.earned
        return round(self.earned * self.all_points / self.points, 2)

    @property
    def left_out(self) -> str:
        """`ring_allreduce: 2 of 25 points are left out: REASON`; empty when everything could be judged."""
        reasons = dict.fromkeys(result.skipped for result in self.results if result.skipped)
        share = f"{number(self.all_points - self.points)} of {number(self.all_points)} points"
        return f"{self.exercise.split('/')[-1]}: {share} are left out: {'; '.join(reasons)}" if reasons else ""

    @property
    def passed(self) -> bool:
        return all(result.passed or result.skipped for result in self.results)

    def without_details(self) -> Report:
        """For feedback on hidden checks: titles, points, failing lines, where to look; no inputs, values or runs."""
        hidden = [
            replace(r, expected="", seen=r.stopped, told="", parts="", run=None, picture=None, fault="")
            for r in self.results
        ]
        return replace(self, results=hidden)

    @property
    def summary(self) -> str:
        """`ring_allreduce: 17 of 20 points (your module, on virtual ranks)`."""
        where = f" ({self.title})" if self.title else ""
        failed = math.fsum(result.points for result in self.results if not (result.counts or result.skipped))
        lab = f"; {number(failed)} more are not counted: {LAB_FAILED}" if failed else ""
        return f"{self.exercise.split('/')[-1]}: {number(self.earned)} of {number(self.points)} points{where}{lab}"

    def text(self) -> str:
        """The whole report for a terminal."""
        return "\n".join([*(result.text() for result in self.results), self.closing()])

    def closing(self) -> str:
        """The last lines of `text()`: the sum, and how to repeat the same inputs if something failed."""
        return (
            self.summary
            if self.passed or not self.seed
            else f"{self.summary}\nto repeat with the same inputs: --seed {self.seed}"
        )

    def __str__(self) -> str:
        return self.text()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.text())

    def _repr_html_(self) -> str:
        seed = 0 if self.passed else self.seed
        return report_html(self.exercise, self.summary, seed, self.results)

    def to_json(self) -> dict[str, Any]:
        """Plain data, without runs and pictures."""
        results = [asdict(replace(result, run=None, picture=None)) for result in self.results]
        return {"exercise": self.exercise, "seed": self.seed, "title": self.title, "results": results}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """The inverse of `to_json`."""
        results = [CheckResult(**{**result, "run": None, "picture": None}) for result in data["results"]]
        return cls(data["exercise"], results, data["seed"], data["title"])
