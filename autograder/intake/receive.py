"""From a submission's folder to gradable notebooks: matches files to notebooks and leaves out the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograder.intake.folder import STAMPS, FolderEntry, content_hash, is_odd, opened, read, shown, walk
from autograder.intake.limits import EntryRefused, IntakeFailed, Limits
from autograder.intake.reading import SubmittedCells, read_cells
from autograder.intake.rebuild import rebuild
from autograder.intake.stamps import Record, Stamp, stamp_of

_SHOWN = 8


@dataclass(frozen=True)
class Release:
    """An assignment as released to learners."""

    notebooks: Mapping[str, NotebookNode]
    """Notebooks by name, without `.ipynb`."""
    files: frozenset[str] = frozenset()
    """Paths of all files, relative to the assignment's folder."""


@dataclass(frozen=True)
class Intake:
    """A submission in the form that is graded."""

    notebooks: Mapping[str, NotebookNode]
    """One notebook for each released one, by name; valid, with notes in `metadata.labkit.intake`."""
    notes: tuple[str, ...]
    """Oddities of the submission: printable, for its author as well as for the instructor."""
    content_hash: str
    """SHA-256, in hex, over names and contents of the submission; empty when there was no folder to read."""
    handed_in: datetime | None
    """Submission time in UTC, without a time zone, as in nbgrader; None when unknown."""
    time_problem: str
    """Why `handed_in` is not the time that the submission's `timestamp.txt` should have; empty if it is."""
    recorded: bool
    """Whether `handed_in` was recorded by `nbgrader collect`, rather than claimed by the submission."""
    submitted: Mapping[str, SubmittedCells] = field(default_factory=dict)
    """Cells of each submitted notebook, unchanged."""


def read_release(folder: Path) -> Release:
    """Return the released assignment at `release/ASSIGNMENT`. Raises IntakeFailed when there is none."""
    try:
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        paths = sorted(folder.glob("*.ipynb"))
        notebooks: dict[str, NotebookNode] = {path.stem: nbformat.read(path, as_version=4) for path in paths}
    except (OSError, ValueError, nbformat.ValidationError) as error:
        raise IntakeFailed(f"the release {folder} cannot be read: {error}") from None
    if not notebooks:
        raise IntakeFailed(f"{folder} holds no notebook: run `nbgrader generate_assignment {folder.name}` first")
    return Release(notebooks, frozenset(files))


def receive(folder: Path, release: Release, limits: Limits | None = None, record: Record | None = None) -> Intake:
    """Return a learner's submission in the form that is graded. Raises IntakeFailed for infrastructure failures.

    record: the record that `nbgrader collect` made of the submission; None when it arrived some other way.
    """
    limits = limits or Limits()
    try:
        with opened(folder) as handle:
            return _receive(handle, release, limits, record)
    except EntryRefused as problem:
        note = f"There is no submission to look at: {problem}."
        notebooks = {name: rebuild(notebook, (), [note], note) for name, notebook in release.notebooks.items()}
        return Intake(notebooks, (note,), "", record.handed_in if record else None, "", record is not None)


def _receive(folder: int, release: Release, limits: Limits, record: Record | None) -> Intake:
    entries, notes = walk(folder, limits)
    stamp = Stamp(record.handed_in) if record else stamp_of(folder)
    notes += [*(record.notes if record else ()), *filter(None, [stamp.problem])]
    empty = "The submission is empty." if all(entry.path in STAMPS for entry in entries) else ""
    if empty:
        notes.append(empty)
    chosen, absent = _choose(entries, release, notes)
    taken = {entry.path for entry in chosen.values()}
    rest = [entry.path for entry in entries if entry.path not in taken | release.files and entry.path not in STAMPS]
    if rest:
        notes.append(f"Only the course's notebooks are graded; left out: {_listed(rest)}.")
    if len(notes) > _SHOWN:
        notes[_SHOWN:] = [f"There is more that is odd about the files: {len(notes) - _SHOWN:,} notes like these."]
    by_name = {name: _read(folder, entry, limits) for name, entry in chosen.items()}
    notebooks = {}
    for name, notebook in release.notebooks.items():
        submitted = by_name.get(name) or SubmittedCells(unread=empty or absent[name])
        notebooks[name] = rebuild(notebook, submitted.cells, [*submitted.notes, *notes], submitted.unread)
    all_notes = [note for notebook in notebooks.values() for note in notebook.metadata.labkit.intake]
    digest = content_hash(folder, entries, limits)
    return Intake(
        notebooks, tuple(dict.fromkeys(all_notes)), digest, stamp.time, stamp.problem, record is not None, by_name
    )


def _read(folder: int, entry: FolderEntry, limits: Limits) -> SubmittedCells:
    try:
        return read_cells(read(folder, entry, limits.notebook_bytes), limits)
    except EntryRefused as problem:
        reason = f"`{shown(entry.path)}` was not read: {problem}."
        return SubmittedCells((), (reason,), reason)


def _choose(
    entries: list[FolderEntry], release: Release, notes: list[str]
) -> tuple[dict[str, FolderEntry], dict[str, str]]:
    """Choose the file for each released notebook; for those without one, return why.

    A file under another name is used if it is the only candidate.
    """
    notebooks = [entry for entry in entries if entry.path.endswith(".ipynb") and not is_odd(entry.path)]
    named = {entry.path.removesuffix(".ipynb"): entry for entry in notebooks}
    chosen = {name: named[name] for name in release.notebooks if name in named}
    others = [entry for entry in notebooks if entry not in chosen.values()]
    missing = [name for name in release.notebooks if name not in chosen]
    absent: dict[str, str] = {}
    for name in missing:
        candidates = [entry for entry in others if _names(entry, release) == name]
        if not candidates and len(missing) == 1:
            candidates = [entry for entry in others if not _names(entry, release)]
        if len(candidates) == 1:
            chosen[name] = candidates[0]
            notes.append(f"There is no `{name}.ipynb`; `{shown(candidates[0].path)}` was read in its place.")
            continue
        absent[name] = f"There is no `{name}.ipynb`{_instead(name, candidates, entries, release)}."
        notes.append(absent[name])
    return chosen, absent


def _instead(name: str, candidates: list[FolderEntry], entries: list[FolderEntry], release: Release) -> str:
    """Return which files may be meant for a released notebook, and why none was read; empty if there are none."""
    if candidates:
        listed = _listed([entry.path for entry in candidates])
        return f", and more than one file that it can be: {listed}. None was read"
    # Windows hides the end of a name, and appends another one
    renamed = [entry.path for entry in entries if entry.name.startswith(f"{name}.ipynb") and not is_odd(entry.path)]
    if renamed:
        return f"; `{shown(renamed[0])}` was not read: the name of a notebook ends in `.ipynb`"
    unnamed = [entry.path for entry in entries if entry.path.endswith(".ipynb") and not _names(entry, release)]
    if unnamed:
        return f"; the name of {_listed(unnamed)} does not say which notebook it is"
    return ""


def _names(entry: FolderEntry, release: Release) -> str:
    """Return the released notebook whose name a file's name contains, with or without the exercise's number.

    Of several, the longest; empty when there is none.
    """
    plain = {name: re.sub(r"^\d+_", "", name) for name in release.notebooks}
    names = (name for name in plain if plain[name].casefold() in entry.name.casefold())
    return max(names, key=lambda name: len(plain[name]), default="")


def _listed(paths: list[str]) -> str:
    """List some of the names, as far as they are ordinary ones."""
    ordinary = [path for path in paths if re.fullmatch(r"[\w./+-]{1,60}", path, re.ASCII)]
    named = [f"`{path}`" for path in ordinary[:_SHOWN]]
    if more := len(ordinary) - len(named):
        named.append(f"{more:,} more")
    if odd := len(paths) - len(ordinary):
        named.append(f"{odd:,} with other names")
    return ", ".join(named)
