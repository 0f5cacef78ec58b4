"""Folders of a training: a new run does not mix with the checkpoints and logs of another one, nor delete them unasked.

Checkpoint folder and log folders have a file `configuration.json`: the run they belong to, and the options it was
begun with. All functions run on the first rank; `Folders.begin` raises `RunRefused`, which the ranks then share.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from labkit.course.phase4_production.checkpointing.given.arguments import storage_in
from labkit.course.phase4_production.checkpointing.given.manifest import checkpoint_folders, unfinished_folders
from labkit.course.training_run.console import Console
from labkit.course.training_run.json_line_file import size_of
from labkit.course.training_run.options import RunRefused

CONFIGURATION = "configuration.json"
_NO_OPTIONS = ("channels", "classes", "ranks")
_PLACE = re.compile(r"pp\d+_tp\d+")
_DEEPSPEED_LATEST = "latest"
_LOGS = ("rank-*.jsonl", "metrics.json", "rank-*/events.out.tfevents.*")
"""Files of a log folder that belong to one run."""


class Begun(NamedTuple):
    """How a run begins."""

    resumes: bool
    """Whether there is a checkpoint to go on from."""
    differences: list[str]
    """Options that differ from those before, `--lr 0.01 (was 0.03)`."""
    deleted: int
    """Number of checkpoints that `--overwrite` has deleted."""

    def say(self, console: Console) -> None:
        """Print what differs, and what was deleted."""
        if self.deleted:
            text = f"deleted checkpoints of an earlier run: {self.deleted}"
            console.line("overwrite", text, checkpoints=self.deleted)
        if self.differences:
            text = f"goes on with other options than before: {', '.join(self.differences)}"
            console.line("options changed", text, differences=self.differences)


class Folders:
    """Folders of one run.

    checkpoint_dir: a folder or an address of fsspec. log_dirs: folders of a monitor's logs. log_file: of the console.
    """

    def __init__(self, checkpoint_dir: str | None, log_dirs: Sequence[str] = (), log_file: str | None = None) -> None:
        self.checkpoint_dir, self.log_dirs, self.log_file = checkpoint_dir, log_dirs, log_file
        self._configuration: dict[str, Any] = {}

    def begin(
        self, program: str, options: Mapping[str, Any], fixed: Collection[str], resume: bool, overwrite: bool
    ) -> Begun:
        """Prepare the folders for a run, and store its configuration.

        options: what decides how the training goes, plain data. fixed: those that a training cannot change. Raises
        `RunRefused` if the folders belong to another run, or if a fixed option differs; nothing has changed then.
        """
        before, number = self.checkpoints(), 0
        own = self.checkpoint_dir or next(iter(self.log_dirs), None)
        stored = None if own is None else stored_configuration(own)
        differences: list[str] = []
        if resume:
            differences = self._require_same(program, options, fixed, stored if before else None)
            self._require_own_logs(stored)
        elif not overwrite:
            self.require_unused()
        if overwrite:
            number = len(before)
            self._delete()
        run = stored["run"] if resume and stored else uuid.uuid4().hex
        self._configuration = {"run": run, "program": program, "options": dict(options)}
        self._store()
        return Begun(resume and bool(before), differences, number)

    def add(self, name: str, value: Any) -> None:
        """Add an entry, plain data, to the configuration that `begin` has stored."""
        self._configuration[name] = value
        self._store()

    def checkpoints(self) -> list[str]:
        """Return the names of the checkpoints, those of a mesh by their places: `pp0_tp0/step_00000100`."""
        return [] if self.checkpoint_dir is None else _checkpoints(self.checkpoint_dir)

    def logs(self) -> list[Path]:
        """Return the files of earlier runs in the log folders, and the console's file if it is not empty."""
        found = [path for folder in self.log_dirs for pattern in _LOGS for path in sorted(Path(folder).glob(pattern))]
        return [*found, *([Path(self.log_file)] if self.log_file and size_of(self.log_file) else [])]

    def require_unused(self) -> None:
        """Raise `RunRefused` if there are checkpoints or logs of an earlier run."""
        what_to_do = "--resume goes on with it, --overwrite deletes it"
        if before := self.checkpoints():
            count = f"{len(before)} checkpoint{'s' if len(before) > 1 else ''}"
            raise RunRefused(f"{self.checkpoint_dir} has {count} of an earlier run: {what_to_do}")
        if logs := self.logs():
            raise RunRefused(f"{logs[0]} is the log of an earlier run: {what_to_do}; or name another place")

    def _require_same(
        self, program: str, options: Mapping[str, Any], fixed: Collection[str], stored: Mapping[str, Any] | None
    ) -> list[str]:
        """Return the options that differ from those stored."""
        if stored is None:
            return []
        if stored["program"] != program:
            raise RunRefused(f"{self.checkpoint_dir} has a training of {stored['program']}, not of {program}")
        old, now = stored["options"], json.loads(json.dumps(dict(options)))
        changed = [name for name in now if name in old and old[name] != now[name]]
        for name in changed:
            if name in fixed:
                raise RunRefused(
                    f"{self.checkpoint_dir} has a training with {_shown(name, old[name])}, which cannot go on with "
                    f"{_shown(name, now[name])}: give what it had, or another --checkpoint-dir"
                )
        return [f"{_shown(name, now[name])} (was {_shown('', old[name])})" for name in changed]

    def _require_own_logs(self, stored: Mapping[str, Any] | None) -> None:
        """Refuse a log folder that says that it is another run's."""
        for folder in self.log_dirs:
            log = stored_configuration(folder)
            if log is not None and (stored is None or log["run"] != stored["run"]):
                raise RunRefused(
                    f"{folder} has the log of another run than {self.checkpoint_dir}: give another folder, or delete it"
                )

    def _delete(self) -> None:
        if self.checkpoint_dir is not None:
            for place in ("", *_places(self.checkpoint_dir)):
                # a storage of its own, whose lock ends here: other ranks will write there
                storage = storage_in(f"{self.checkpoint_dir}/{place}".rstrip("/"))
                for folder in [*unfinished_folders(storage), *checkpoint_folders(storage)]:
                    storage.remove(folder)
            if _DEEPSPEED_LATEST in storage_in(self.checkpoint_dir).list(""):
                (Path(self.checkpoint_dir) / _DEEPSPEED_LATEST).unlink()
        for path in self.logs():
            path.unlink()

    def _store(self) -> None:
        text = json.dumps(self._configuration, indent=1).encode() + b"\n"
        for folder in self.log_dirs:
            Path(folder).mkdir(parents=True, exist_ok=True)
            temporary = Path(folder) / f"{CONFIGURATION}.tmp"
            temporary.write_bytes(text)
            os.replace(temporary, Path(folder) / CONFIGURATION)
        if self.checkpoint_dir is not None:
            if "://" not in self.checkpoint_dir:
                Path(self.checkpoint_dir).mkdir(parents=True, exist_ok=True)
            storage_in(self.checkpoint_dir).write(CONFIGURATION, [text])


def stored_configuration(folder: str) -> dict[str, Any] | None:
    """Return what a folder's `configuration.json` says: run, program and options. None if there is none."""
    storage = storage_in(folder)
    if CONFIGURATION not in storage.list(""):
        return None
    try:
        read: dict[str, Any] = json.loads(bytes(storage.read(CONFIGURATION)))
        return read if {"run", "program", "options"} <= read.keys() else None
    except (ValueError, AttributeError):
        return None  # torn, by a crash of the whole machine


def _checkpoints(checkpoint_dir: str) -> list[str]:
    own = checkpoint_folders(storage_in(checkpoint_dir))
    for place in _places(checkpoint_dir):
        own += [f"{place}/{name}" for name in checkpoint_folders(storage_in(f"{checkpoint_dir}/{place}"))]
    return own


def _places(checkpoint_dir: str) -> list[str]:
    return [name for name in storage_in(checkpoint_dir).list("") if _PLACE.fullmatch(name)]


def _shown(name: str, value: Any) -> str:
    """Return an option as at the shell: `--lr 0.03`, `--resume`, `without --ema`."""
    if name in _NO_OPTIONS:
        return f"{value} {name}"
    option = f"--{name.replace('_', '-')} " if name else ""
    if isinstance(value, bool):
        return option.strip() + ("" if value else " off") if name else ("on" if value else "off")
    if isinstance(value, list):
        return option + "x".join(map(str, value))
    return f"{option}{'none' if value is None else value}"
