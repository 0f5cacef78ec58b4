"""A rubric: checks written as plain functions, in a file of their own, loaded by path.

    @check(points=2, title="sends only what a ring must", look_at="what leaves a rank in each round")
    def traffic(submission, ranks, draw):
        ...

Parameters are passed by name: `submission` (the learner's module), `ranks` (makes ranks), `draw` (random choices).

A check that reads the kernel's counters declares it: `needs={"network"}` for `run.bytes_on_the_wire`,
`needs={"memory"}` for `ranks(n).measured(...)`. If the judge finds that a counter is wrong on a machine, it leaves the
check out for every submission.

Each check names the last TODO of the template that it needs, `todo=2`. Checks run in the order of their TODOs, those of
one TODO in the order of the file: parts first, then what is built from them. If an easier check covers the wrong value,
`expect(values, "result", easier=["values"])` points the learner to that check.

A visible rubric also has `HINTS`, for each TODO a list of Markdown texts from a nudge to almost the line: `{1: ["..."],
2: [...]}`. Next to a hidden rubric are other correct solutions, its variants, which earn all points, and
wrong ones, its mutants. It may have `FORBIDDEN = {"torch.distributed.all_reduce"}`, full names that
`labkit integrity` points out, without effect on marks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit.catalogue import Exercise
from labkit.text_files import read_text

PARAMETERS = ("submission", "ranks", "draw")
FIGURES = ("network", "memory")
"""Kernel counters that a check may need: bytes sent over the network, and peak memory."""


class NoRubric(ValueError):
    """The exercise has no rubric at the expected path."""


@dataclass(frozen=True)
class Check:
    """One check, all or nothing."""

    name: str
    title: str
    points: float
    look_at: str
    """Where to look when it fails; shown to learners, so it must not reveal a hidden rubric."""
    function: Callable[..., None]
    needs: Set[str] = frozenset()
    """Kernel counters that it needs, by their names in `FIGURES`."""
    todo: int = 0
    """Number of the last TODO of the template that it needs; 0 if TODOs have no numbers."""

    def __call__(self, **given: Any) -> None:
        """Run the check. Raises `CheckFailed`, `RankFailed` or `NotMeasurable`."""
        wanted = inspect.signature(self.function).parameters
        self.function(**{name: given[name] for name in wanted})


def check(
    *, points: float, title: str, look_at: str = "", needs: Set[str] = frozenset(), todo: int = 0
) -> Callable[[Callable[..., None]], Check]:
    """Turn a function into a check. `points` are earned when it returns, lost when it raises."""
    if points <= 0:
        raise ValueError(f"points must be above 0, got {points}")
    if not needs <= set(FIGURES):
        raise ValueError(f"needs must be among {', '.join(FIGURES)}, got {', '.join(sorted(needs))}")

    def make(function: Callable[..., None]) -> Check:
        unknown = [name for name in inspect.signature(function).parameters if name not in PARAMETERS]
        if unknown:
            known = ", ".join(PARAMETERS)
            raise ValueError(f"check {function.__name__} has unknown parameters {', '.join(unknown)}; known: {known}")
        return Check(function.__name__, title, points, look_at, function, needs, todo)

    return make


@dataclass(frozen=True)
class Rubric:
    """The checks of one exercise, in the order of their TODOs and of the file."""

    exercise: Exercise
    checks: Sequence[Check]
    path: Path
    hints: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """For each TODO, by number, its hints as Markdown."""

    @property
    def points(self) -> float:
        return sum(check.points for check in self.checks)


def load_rubric(exercise: Exercise, path: Path) -> Rubric:
    """Run a rubric's file and collect its checks, sorted by TODO.

    Raises `NoRubric` if the file is missing or has no checks.
    """
    if not path.is_file():
        raise NoRubric(f"{exercise.name} has no checks: {path} is missing")
    module = ModuleType(f"rubric of {exercise.name}")
    module.__file__ = str(path)
    exec(compile(read_text(path), str(path), "exec"), module.__dict__)
    defined = (value for value in vars(module).values() if isinstance(value, Check))
    checks = sorted(defined, key=lambda check: check.todo)
    if not checks:
        raise NoRubric(f"{exercise.name} has no checks: {path} defines none with @check")
    return Rubric(exercise, checks, path, getattr(module, "HINTS", {}))


def visible_path(exercise: Exercise) -> Path:
    """File of the exercise's visible checks."""
    return exercise.folder("labkit") / "checks.py"


def visible_rubric(exercise: Exercise) -> Rubric:
    """The checks that learners see and run. Raises `NoRubric`."""
    return load_rubric(exercise, visible_path(exercise))
