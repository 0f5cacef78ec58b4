"""Detached jobs: `labkit launch --detach` starts them, each with a folder by which it is found again.

A job is run by a process of its own, the launcher (labkit/launch/launcher.py): on this machine, in a session that does
not end with the shell, or where the cluster has batch jobs, in one. Its folder, below `$XDG_STATE_HOME/labkit/jobs`:

    job.json          the tasks, as they were at the time of the launch
    environment.json  variables for a launcher in a batch job, which deletes the file
    output            what the launcher prints: the lines of the ranks, notes and failures
    lock              locked as long as a launcher on this machine runs
    pid, batch_id     of the launcher, as process or as batch job
    exit_status       of the job, once it has ended
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.command_line.commands import CommandError
from labkit.linux.files import replace_text

_FIELDS: dict[str, type] = {
    "command": str, "cluster": str, "directory": str, "host": str, "launched": str, "in_batch_job": bool, "tasks": list,
}  # fmt: skip


class DamagedJob(CommandError):
    """A job whose record was cut, edited or written by another version; the message names the file and the reason."""


@dataclass(frozen=True)
class DetachedJob:
    """A job by its folder. Raises `OSError` if that is removed meanwhile."""

    folder: Path

    @property
    def name(self) -> str:
        """`train-3`; `train-3_1` in an array."""
        return self.folder.name

    @property
    def output(self) -> Path:
        return self.folder / "output"

    @property
    def record(self) -> dict[str, Any]:
        """Contents of job.json: `command`, `cluster`, `directory`, `host`, `launched`, `in_batch_job`, `tasks`.

        Raises `DamagedJob` if it is not whole.
        """
        file = self.folder / "job.json"
        try:
            content: dict[str, Any] = json.loads(file.read_text())
        except ValueError as error:  # as for bytes that are not UTF-8
            raise DamagedJob(f"{file} is not JSON, so the job cannot be found again: {error}") from None
        if missing := [name for name, kind in _FIELDS.items() if not isinstance(_get(content, name), kind)]:
            raise DamagedJob(
                f"{file} has no valid {', '.join(missing)}, so the job cannot be found again; if it has ended, remove "
                f"its folder"
            )
        return content

    @property
    def launched(self) -> str:
        """Time of the launch, as `2026-11-26T17:00:00`; empty if its record is damaged."""
        try:
            return str(self.record["launched"])
        except DamagedJob:
            return ""

    @property
    def exit_status(self) -> int | None:
        """Exit status; None as long as it has not ended, and if its launcher was killed."""
        status = self._read("exit_status")
        return int(status) if status else None

    def end(self, status: int) -> None:
        """Record the exit status; a job that has never begun still has its environment."""
        (self.folder / "environment.json").unlink(missing_ok=True)
        replace_text(self.folder / "exit_status", f"{status}\n")

    @property
    def batch_id(self) -> str:
        """Identifier of the batch job that runs it; empty for a process, and until it is submitted."""
        return self._read("batch_id")

    @property
    def pid(self) -> int:
        """Process id of the launcher; 0 if it is a batch job."""
        return int(self._read("pid") or 0)

    def is_locked(self) -> bool:
        """Return whether a launcher on this machine runs the job."""
        with contextlib.suppress(FileNotFoundError), open(self.folder / "lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def take_environment(self) -> dict[str, str]:
        """Return the variables of the shell that launched the job, and delete the file that has them."""
        file = self.folder / "environment.json"
        environment: dict[str, str] = json.loads(file.read_text())
        file.unlink()
        return environment

    def forget(self) -> None:
        """Remove the job's folder."""
        shutil.rmtree(self.folder)

    def _read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text().strip()
        except FileNotFoundError:
            return ""


def all_jobs() -> list[DetachedJob]:
    """Return the jobs of this user, the oldest first."""
    jobs = [DetachedJob(file.parent) for file in jobs_folder().glob("*/job.json")]
    return sorted(jobs, key=lambda job: (job.launched, _natural(job.name)))


def find(name: str) -> list[DetachedJob]:
    """Return the job of that name, or all jobs of the array. Raises `CommandError` if there is none."""
    known = all_jobs()
    matches = [job for job in known if job.name == name or job.name.rpartition("_")[0] == name]
    if not matches:
        names = ", ".join(job.name for job in known[-5:])
        raise CommandError(f"there is no job {name}; " + (f"the latest are {names}" if names else "there are no jobs"))
    return matches


def jobs_folder() -> Path:
    """Return the folder of all jobs. It is in the home directory, which nodes of a cluster usually share."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "labkit" / "jobs"


def _get(record: object, name: str) -> object:
    return record.get(name) if isinstance(record, dict) else None


def _natural(name: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
