"""Real users of this machine, for tests that run as root: with homes and passwords, removed at the end."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import labkit

PASSWORD = "correct horse"


@dataclass(frozen=True)
class Users:
    """`folder` is one that all users can enter; pytest's are closed to others. Names are new on this machine."""

    folder: Path
    names: tuple[str, ...]

    def home(self, name: str) -> Path:
        return self.folder / "homes" / name


@contextmanager
def unix_users(*names: str) -> Iterator[Users]:
    """Make users with these names before a random part; skip the test where that is impossible."""
    if os.geteuid() != 0:
        pytest.skip("needs root: users of this machine")
    folder = Path(tempfile.mkdtemp(prefix="labkit-users-", dir="/tmp"))
    folder.chmod(0o755)
    users = Users(folder, tuple(f"{name}-{secrets.token_hex(3)}" for name in names))
    (folder / "homes").mkdir()
    try:
        for name in users.names:
            command = ["useradd", "--create-home", "--home-dir", str(users.home(name)), "--shell", "/bin/bash"]
            subprocess.run([*command, name], check=True, capture_output=True)
            users.home(name).chmod(0o700)
            subprocess.run(["chpasswd"], input=f"{name}:{PASSWORD}\n", text=True, check=True, capture_output=True)
        yield users
    finally:
        for name in users.names:
            for process in psutil.process_iter(["username"]):
                if process.info["username"] == name:
                    with suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
            subprocess.run(["userdel", name], capture_output=True)
        shutil.rmtree(folder)


def as_user(name: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user, from the root folder."""
    become = ["runuser", "-u", name, "--"]
    return subprocess.run([*become, *command], cwd="/", capture_output=True, text=True)


def lines_that_open(kept: Path, folders: Sequence[Path] = ()) -> str:
    """Return lines of bash, for a mount namespace in which all users reach Python, this lab and `folders`.

    Their parents may be closed, as root's home is. kept: an empty folder.
    """
    shown = [Path(sys.base_prefix), Path(sys.prefix), Path(labkit.__file__).parents[1], *folders]
    closed = {path: _closed(path) for path in shown}
    lines = []
    for number, path in enumerate(path for path in shown if closed[path]):
        lines += [f"mkdir -p {kept}/{number}", f"mount --rbind {shlex.quote(str(path))} {kept}/{number}"]
    for top in sorted({str(found) for found in closed.values() if found}):
        lines += [f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(top)}"]
    for number, path in enumerate(path for path in shown if closed[path]):
        quoted = shlex.quote(str(path))
        lines += [f"mkdir -p {quoted}", f"mount --rbind {kept}/{number} {quoted}"]
    return "\n".join(lines)


def mounts_that_open(folders: Iterable[Path]) -> list[str]:
    """Return arguments for bubblewrap, after which all users reach these folders, read-only.

    Their parents may be closed, as root's home is, or covered by what was mounted before.
    """
    mounts: list[str] = []
    made: set[Path] = set()
    for folder in folders:
        closed = _closed(folder)
        for parent in reversed(folder.parents[:-1]):
            kind = "--tmpfs" if parent == closed and parent not in made else "--dir"
            mounts += ["--perms", "0755", kind, str(parent)]  # what bubblewrap makes unasked is closed
            made.add(parent)
        mounts += ["--ro-bind", str(folder), str(folder)]
    return mounts


def _closed(path: Path) -> Path | None:
    """Return the first folder on the way to `path` that other users cannot enter, or None."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & 1), None)
