"""The catalogue of exercises: their order in the course, the facts about each, and where its module is.

`labkit/catalogue.toml` lists them; there is no other list. `labkit new-exercise` enters a new one. An instructor's own
exercises may be in a folder outside of the lab, which is laid out as the lab's and has a catalogue of its own.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from labkit.linux.files import replace_text
from labkit.text_files import UnreadableText, read_text

Origin = Literal["yours", "template", "solution"]

OWN_ROOT = "LABKIT_EXERCISES"
"""Environment variable that names the course folder of an instructor's own exercises."""
FIRST_OWN_NUMBER = 50
"""Number of the first exercise there. The lab's own numbers stay below it, so that an upgrade of the lab takes none."""

_CHECKOUT = Path(__file__).resolve().parent.parent
_CATALOGUE = "labkit/catalogue.toml"


class UnknownExercise(ValueError):
    """There is no exercise of that name; the message suggests similar names."""


class WrongCatalogue(ValueError):
    """A catalogue is missing or contradicts itself; the message names its file."""


class MissingModule(ValueError):
    """The exercise does not have a module to run yet."""


def root() -> Path:
    """Return the course folder, which holds `templates/` and `solutions/`. `LABKIT_ROOT` overrides it."""
    return Path(os.environ.get("LABKIT_ROOT") or _CHECKOUT)


def own_root() -> Path | None:
    """Return the course folder of an instructor's own exercises, named by `LABKIT_EXERCISES`; None if that is not set.

    Raises `WrongCatalogue` for a folder without a catalogue, and for one that overlaps with the lab's.
    """
    folder = _named_own_root()
    if folder is None:
        return None
    if overlapping := overlaps_with_lab(folder):
        raise WrongCatalogue(f"{OWN_ROOT} is {folder}, which overlaps with the lab in {overlapping}: move it elsewhere")
    if not catalogue_path(folder).is_file():
        raise WrongCatalogue(
            f"{OWN_ROOT} is {folder}, where there is no {_CATALOGUE}: set it to the folder's new place, or unset it"
        )
    return folder


def overlaps_with_lab(folder: Path) -> Path | None:
    """Return the lab's folder if one of the two is in the other; None if they are apart.

    Hidden parts of one might be visible as parts of the other, and an upgrade of the lab might change `folder`.
    """
    for lab in (root().resolve(), _CHECKOUT):
        if folder.is_relative_to(lab) or lab.is_relative_to(folder):
            return lab
    return None


def own_environment() -> dict[str, str]:
    """Return the environment variable by which other processes find `own_root()`; empty if there is none."""
    folder = own_root()
    return {} if folder is None else {OWN_ROOT: str(folder)}


def code_folders() -> tuple[Path, ...]:
    """Return the folders of the lab's code: the package, and `labkit/` of an instructor's own exercises."""
    own = _named_own_root()
    package = Path(__file__).parent
    return (package,) if own is None else (package, own / "labkit")


def _named_own_root() -> Path | None:
    named = os.environ.get(OWN_ROOT)
    return Path(named).expanduser().resolve() if named else None


def roots() -> tuple[Path, ...]:
    """Return the course folders: the lab's, then that of an instructor's own exercises if there is one."""
    own = own_root()
    return (root(),) if own is None else (root(), own)


def workspace() -> Path:
    """Return the folder of learners' modules, `workspace/` of the course; `LABKIT_WORKSPACE` overrides it."""
    return Path(os.environ.get("LABKIT_WORKSPACE") or root() / "workspace")


def guides() -> Path:
    """Return the folder of the guides where JupyterLab opens them: `docs/` of the course, or the link to it in a
    workspace outside of the course (`labkit.progress.home` makes it), since JupyterLab then serves only the workspace.
    """
    folder, link = root() / "docs", workspace() / "docs"
    return link if link.is_symlink() and os.path.realpath(link) == os.path.realpath(folder) else folder


def shown_path(path: Path) -> str:
    """Return a path as messages show it: below the lab's folder if it is there."""
    return str(path.relative_to(root()) if path.is_relative_to(root()) else path)


@dataclass(frozen=True)
class Entry:
    """The facts that the catalogue states about one exercise."""

    number: int
    """Position in the course, from 1; planned exercises have numbers, too, so there may be gaps."""
    name: str
    """`phase3_multi_node/ring_allreduce`."""
    title: str
    """Title of its notebook."""
    builds_on: tuple[str, ...]
    """Short names of the earlier exercises that its module imports."""
    minutes: int
    """Minutes that a learner needs for the notebook."""
    points: float
    """Points of each of its rubrics: the sum over the checks."""


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
    def root(self) -> Path:
        """The course folder that has its files: that of an instructor's own exercises if its catalogue lists it."""
        own = own_root()
        return own if own is not None and self.name in _names(catalogue_path(own)) else root()

    @property
    def paths(self) -> dict[Origin, Path]:
        """Paths of the existing versions of the module."""
        return {
            "yours": workspace() / self.filename,
            "template": self.root / "templates" / self.filename,
            "solution": self.root / "solutions" / self.filename,
        }

    @property
    def public_names(self) -> tuple[str, ...]:
        """The contract: `__all__` of the template, or of the solution if there is no template. Runs no code."""
        for origin in ("template", "solution"):
            path = self.paths[origin]
            if path.is_file():
                return declared_names(read_text(path), self.filename)
        return ()

    @property
    def label(self) -> str:
        """Number and title, as links and its notebook's heading show them: `04 · A data-parallel trainer`."""
        return f"{self.entry.number:02} · {self.entry.title}"

    @property
    def notebook_name(self) -> str:
        """Path of its notebook below `notebooks/` or the workspace; the file name begins with the number."""
        return f"{self.phase}/{self.entry.number:02}_{self.short_name}.ipynb"

    @property
    def notebook(self) -> Path:
        """Path of the solved notebook. Raises `UnknownExercise`."""
        return self.root / "notebooks" / self.notebook_name

    @property
    def entry(self) -> Entry:
        """The catalogue's facts about it. Raises `UnknownExercise`."""
        for entry in entries():
            if entry.name == self.name:
                return entry
        raise UnknownExercise(f"{self.name} is not in {catalogue_path()}")

    @property
    def builds_on(self) -> tuple[Exercise, ...]:
        """Exercises whose modules its own imports, directly or indirectly, in the course's order."""
        needed = set(self.entry.builds_on)
        earlier = [exercise for exercise in all_exercises() if exercise.entry.number < self.entry.number]
        for exercise in reversed(earlier):
            if exercise.short_name in needed:
                needed.update(exercise.entry.builds_on)
        return tuple(exercise for exercise in earlier if exercise.short_name in needed)

    @property
    def following(self) -> Exercise | None:
        """The next exercise in the course's order; None after the last one."""
        return next((other for other in all_exercises() if other.entry.number > self.entry.number), None)

    def folder(self, owner: Literal["labkit", "autograder", "tests"]) -> Path:
        """Return the folder of this exercise's own files: in the course tree, else in the installed package.

        `labkit` holds what learners have besides notebook and template (`given`, `scenarios`, `checks.py`,
        `questions.py`), `autograder` what they have not (`rubric.py`, mutants, variants), `tests` its tests and
        `benchmark.py`, which no package has.
        """
        in_course = self.root / owner / "course" / self.name
        if in_course.is_dir() or owner == "tests":
            return in_course
        package = importlib.util.find_spec(owner)
        return in_course if package is None else Path(str(package.origin)).parent / "course" / self.name

    def source(self, *origins: Origin) -> tuple[str, Origin]:
        """Return the current module's text and origin: the first of `origins` that exists (yours, else template)."""
        for origin in origins or ("yours", "template"):
            path = self.paths[origin]
            if path.is_file():
                return _module_text(path), origin
        raise MissingModule(f"{self.name} has no module yet: run its %%exercise cell, or copy {self.paths['template']}")

    def save(self, text: str) -> Path:
        """Save `text` as the learner's module, at once: a check that runs meanwhile reads the old text or the new one.

        A version that it replaces is kept in `.history/`.
        """
        path = self.paths["yours"]
        if path.is_file() and (old := _module_text(path)) != text:
            self._next_kept().write_text(old)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text)
        return path

    def reset(self) -> Path | None:
        """Go back to the template. Returns the path where the learner's module is kept now; None if there was none."""
        path = self.paths["yours"]
        return path.rename(self._next_kept()) if path.is_file() else None

    def _next_kept(self) -> Path:
        history = workspace() / ".history" / self.name
        history.mkdir(parents=True, exist_ok=True)
        return history / f"{len(list(history.iterdir())) + 1:04d}.py"


def _module_text(path: Path) -> str:
    """Return the text of a module. Raises `UnreadableText`, which names the file."""
    try:
        return read_text(path)
    except UnreadableText as problem:
        raise UnreadableText(f"{path}: {problem}") from None


def _catalogue_text(path: Path) -> str:
    try:
        return read_text(path)
    except UnreadableText as problem:
        raise WrongCatalogue(f"{path}: {problem}") from None


def catalogue_path(folder: Path | None = None) -> Path:
    """File of the catalogue in a course folder; by default the lab's, in the course tree or the installed package."""
    if folder is not None:
        return folder / _CATALOGUE
    in_course = root() / _CATALOGUE
    return in_course if in_course.is_file() else Path(__file__).with_name("catalogue.toml")


def entries() -> tuple[Entry, ...]:
    """Return the entries in the course's order, the lab's before an instructor's own.

    Raises `WrongCatalogue` for a file that contradicts itself or the lab's.
    """
    own = own_root()
    paths = [catalogue_path()] if own is None else [catalogue_path(), catalogue_path(own)]
    return _entries(tuple((str(path), _catalogue_text(path)) for path in paths))


def _names(path: Path) -> frozenset[str]:
    """Return the names of the exercises that a catalogue lists."""
    return frozenset(str(fields.get("name")) for fields in _listed(str(path), _catalogue_text(path)))


@functools.lru_cache(maxsize=8)
def _entries(catalogues: tuple[tuple[str, str], ...]) -> tuple[Entry, ...]:
    """Return the entries of these catalogues, given by path and text."""
    entries: list[Entry] = []
    names: dict[str, str] = {}
    for path, text in catalogues:
        for fields in _listed(path, text):
            try:
                entry = Entry(**{**fields, "builds_on": tuple(fields["builds_on"])})
            except (KeyError, TypeError) as error:
                raise WrongCatalogue(f"{path}: the fields of {fields.get('name', 'an exercise')}: {error}") from None
            short_name = entry.name.split("/")[1]
            if entries and entry.number <= entries[-1].number:
                last = entries[-1]
                raise WrongCatalogue(
                    f"{path}: number {entry.number} of {entry.name} must be above {last.number} of {last.name}"
                )
            if short_name in names:
                raise WrongCatalogue(
                    f"{path}: {entry.name} has the short name of an earlier exercise, {names[short_name]}: rename it"
                )
            if later := [name for name in entry.builds_on if name not in names]:
                raise WrongCatalogue(f"{path}: {entry.name} builds on {', '.join(later)}, which must come before it")
            names[short_name] = entry.name
            entries.append(entry)
    return tuple(entries)


@functools.lru_cache(maxsize=8)
def _listed(path: str, text: str) -> list[dict[str, Any]]:
    try:
        listed: list[dict[str, Any]] = tomllib.loads(text).get("exercise", [])
    except tomllib.TOMLDecodeError as error:
        raise WrongCatalogue(f"{path}: {error}") from None
    return listed


def all_exercises() -> list[Exercise]:
    """Return all exercises, in the course's order."""
    return [Exercise(entry.name) for entry in entries()]


def exercises_in(folder: Path) -> list[Exercise]:
    """Return the exercises whose files are in this one of the `roots()`, in the course's order."""
    return [exercise for exercise in all_exercises() if exercise.root == folder]


def current_modules() -> dict[str, str]:
    """Return the source of every exercise's current module by name, for `labkit.exercises` on ranks."""
    sources = {}
    for exercise in all_exercises():
        try:
            sources[exercise.name], _ = exercise.source()
        except MissingModule:
            continue
    return sources


def several(name: str) -> list[Exercise]:
    """Return the exercises of phase `name`, or of the course for "all", in its order; empty for any other name."""
    return [exercise for exercise in all_exercises() if name == "all" or exercise.phase == name.rstrip("/")]


def find(name: str) -> Exercise:
    """Find an exercise by name, `phase3_multi_node/ring_allreduce`, or `ring_allreduce` for short."""
    exercises = all_exercises()
    for exercise in exercises:
        if name in (exercise.name, exercise.short_name):
            return exercise
    names = [e.name for e in exercises] + [e.short_name for e in exercises]
    parts = [e.short_name for e in exercises if name and name in e.short_name]
    # "ring" is a word of ring_allreduce, and in monitoring by chance
    parts = [part for part in parts if any(word.startswith(name) for word in part.split("_"))] or parts
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
