"""The catalogue of exercises: which exist, in the course's order, and where the versions of each module are.

An exercise exists if `templates/phaseN_*/NAME.py` or `solutions/phaseN_*/NAME.py` does; there is no other list.
"""

from __future__ import annotations

import ast
import difflib
import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Origin = Literal["yours", "template", "solution"]


class UnknownExercise(ValueError):
    """There is no exercise of that name; the message suggests similar names."""


class MissingModule(ValueError):
    """The exercise does not have a module to run yet."""


def root() -> Path:
    """Return the course folder, which holds `templates/` and `solutions/`. `LABKIT_ROOT` overrides it."""
    return Path(os.environ.get("LABKIT_ROOT") or Path(__file__).resolve().parent.parent)


def workspace() -> Path:
    """Return the folder of learners' modules, `workspace/` of the course; `LABKIT_WORKSPACE` overrides it."""
    return Path(os.environ.get("LABKIT_WORKSPACE") or root() / "workspace")


@dataclass(frozen=True)
class Exercise:
    """One exercise; `name` is `phase3_multi_node/ring_allreduce`."""

    name: str

    @property
    def phase(self) -> str:
        return self.name.split("/")[0]

    @property
    def short_name(self) -> str:
        return self.name.split("/")[1]

    @property
    def filename(self) -> str:
        """File name of the module, as shown in tracebacks and traces."""
        return f"{self.name}.py"

    @property
    def paths(self) -> dict[Origin, Path]:
        """Paths of the existing versions of the module."""
        return {
            "yours": workspace() / self.filename,
            "template": root() / "templates" / self.filename,
            "solution": root() / "solutions" / self.filename,
        }

    @property
    def public_names(self) -> tuple[str, ...]:
        """The contract: `__all__` of the template, or of the solution if there is no template. Runs no code."""
        for origin in ("template", "solution"):
            path = self.paths[origin]
            if path.is_file():
                return declared_names(path.read_text(), self.filename)
        return ()

    @property
    def builds_on(self) -> tuple[Exercise, ...]:
        """Exercises that its template, or else its solution, imports, directly or indirectly; prerequisites first.

        Runs no code. Raises ValueError if they build on each other.
        """
        return tuple(_builds_on(self, ()))

    def source(self, *origins: Origin) -> tuple[str, Origin]:
        """Return the current module's text and origin: the first of `origins` that exists (yours, else template)."""
        for origin in origins or ("yours", "template"):
            path = self.paths[origin]
            if path.is_file():
                return path.read_text(), origin
        raise MissingModule(f"{self.name} has no module yet: run its %%exercise cell, or copy {self.paths['template']}")

    def save(self, text: str) -> Path:
        """Save `text` as the learner's module. A version that it replaces is moved to `.history/`."""
        path = self.paths["yours"]
        if path.is_file() and path.read_text() != text:
            self.reset()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def reset(self) -> Path | None:
        """Go back to the template. Returns the path where the learner's module is kept now; None if there was none."""
        path = self.paths["yours"]
        if not path.is_file():
            return None
        history = workspace() / ".history" / self.name
        history.mkdir(parents=True, exist_ok=True)
        return path.rename(history / f"{len(list(history.iterdir())) + 1:04d}.py")


def _builds_on(exercise: Exercise, above: tuple[str, ...]) -> list[Exercise]:
    if exercise.name in above:
        raise ValueError(f"exercises build on each other: {' -> '.join([*above, exercise.name])}")
    path = next((p for o in ("template", "solution") if (p := exercise.paths[o]).is_file()), None)
    found: dict[str, Exercise] = {}
    for node in ast.walk(ast.parse(path.read_text(), exercise.filename)) if path else ():
        if isinstance(node, ast.ImportFrom) and node.module == "labkit.exercises":
            for name in node.names:
                earlier = find(name.name)
                for needed in (*_builds_on(earlier, (*above, exercise.name)), earlier):
                    found.setdefault(needed.name, needed)
    return list(found.values())


def all_exercises() -> list[Exercise]:
    """Return all exercises, phase by phase, each phase in the order of the headings in its templates' README.md."""
    found = {
        f"{path.parent.name}/{path.stem}"
        for tree in ("templates", "solutions")
        for path in (root() / tree).glob("phase*_*/*.py")
        if not path.stem.startswith("_")
    }
    headings = {phase: _headings(phase) for phase in {name.split("/")[0] for name in found}}

    def place(exercise: Exercise) -> tuple[str, int, str]:
        order = headings[exercise.phase]
        named = exercise.short_name in order
        return exercise.phase, order.index(exercise.short_name) if named else len(order), exercise.name

    return sorted(map(Exercise, found), key=place)


def _headings(phase: str) -> list[str]:
    """Names given as `NAME` in the headings of a phase's guidelines."""
    guidelines = root() / "templates" / phase / "README.md"
    return re.findall(r"^## `(\w+)`$", guidelines.read_text(), re.MULTILINE) if guidelines.is_file() else []


def find(name: str) -> Exercise:
    """Find an exercise by name, `phase3_multi_node/ring_allreduce`, or `ring_allreduce` for short."""
    exercises = all_exercises()
    for exercise in exercises:
        if name in (exercise.name, exercise.short_name):
            return exercise
    names = [e.name for e in exercises] + [e.short_name for e in exercises]
    parts = [e.short_name for e in exercises if name and name in e.short_name]
    near = parts[:3] or difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    offer = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(e.name for e in exercises)}"
    raise UnknownExercise(f"no exercise is called {name!r}; {offer}")


@functools.lru_cache(maxsize=64)
def declared_names(source: str, filename: str) -> tuple[str, ...]:
    """Read `__all__` from a module's text without running it."""
    for node in ast.parse(source, filename).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return tuple(ast.literal_eval(node.value))
    return ()
