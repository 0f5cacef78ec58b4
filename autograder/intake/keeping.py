"""Storage of collected submissions: plain files only, and every earlier submission with its record."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

from nbgrader.coursedir import CourseDirectory

from autograder.intake.folder import STAMPS, FolderEntry, chunks, is_odd, shown
from autograder.intake.limits import EntryRefused
from autograder.intake.stamps import Record, current_record

_FOLDER_TIME = "%Y%m%dT%H%M%S.%fZ"
_SHOWN = 20


def copy_plain_files(folder: int, found: list[FolderEntry], target: Path, course: CourseDirectory) -> list[str]:
    """Copy from an open folder, notebooks first: other files must not exhaust the limits. Returns what was left out.

    nbgrader's own time stamp is not copied. Raises FilesChanged when a file has changed since it was found.
    """
    mode = 0o664 if course.groupshared else 0o644
    notes = []
    left = 1000 * course.max_dir_size
    for entry in sorted(found, key=lambda entry: (not entry.path.endswith(".ipynb"), entry.path)):
        names = entry.path.split("/")
        if entry.path == STAMPS[0] or any(fnmatch.fnmatch(name, glob) for name in names for glob in course.ignore):
            continue
        if any(is_odd(name) for name in names):
            notes.append(f"`{shown(entry.path)}` was left out: its name is odd.")
            continue
        path = target / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("wb") as file:
                for chunk in chunks(folder, entry, min(left, 1000 * course.max_file_size)):
                    file.write(chunk)
                    left -= len(chunk)
            path.chmod(mode)
        except EntryRefused as problem:
            path.unlink()
            notes.append(f"`{shown(entry.path)}` was left out: {problem}.")
    if course.groupshared:
        for path in (target, *(path for path in target.rglob("*") if path.is_dir())):
            path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o2770)
    if len(notes) > _SHOWN:
        notes[_SHOWN:] = [f"{len(notes) - _SHOWN:,} more files were left out."]
    return notes


def put_by(submitted: Path, collected: Path, record: Record | None) -> None:
    """Archive the contents of `submitted` with their record, so that no submission is lost."""
    collected.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(submitted):
        return
    name = record.handed_in.strftime(_FOLDER_TIME) if record else "unrecorded"
    number = 1
    place = collected / name
    while os.path.lexists(place):
        number += 1
        place = collected / f"{name}-{number}"
    shutil.move(submitted, place)
    if record:
        write_json(place.with_name(f"{place.name}.json"), record.to_json())


def bring_back(submitted: Path, collected: Path, source: str) -> bool:
    """Put an earlier submission back into `submitted`, and archive the current one; return whether it was found.

    source: name of its folder in the exchange. If this is interrupted, the next collect takes the newest one again.
    """
    for path in sorted(collected.glob("*.json")):
        if path.name == "current.json" or not path.with_suffix("").is_dir():
            continue
        earlier = Record.from_json(json.loads(path.read_text()))
        if earlier.source == source:
            put_by(submitted, collected, current_record(collected))
            write_json(collected / "current.json", earlier.to_json())
            shutil.move(path.with_suffix(""), submitted)
            path.unlink()
            return True
    return False


def discard_files(collected: Path, kept: int, spared: str) -> None:
    """Delete the files of all earlier submissions but the newest `kept`; their records stay.

    spared: name in the exchange of a submission whose files are kept in any case.
    """
    earlier = [path for path in collected.glob("[!.]*.json") if path.with_suffix("").is_dir()]
    for path in sorted(earlier)[: max(len(earlier) - kept, 0)]:
        if Record.from_json(json.loads(path.read_text())).source != spared:
            shutil.rmtree(path.with_suffix(""))


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically."""
    making = path.with_name(f".{path.name}")
    making.write_text(json.dumps(data, indent=1))
    making.replace(path)
