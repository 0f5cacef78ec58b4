"""Control groups: the kernel counts and limits what all processes of a sandbox use together. Versions 1 and 2.

Each submission, and each learner's server of a classroom, gets a group below the grader's or the hub's own, or below
one delegated by the site, if it is writable; otherwise there is none, and a watchdog counts by /proc.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_VERSION_1 = ("memory", "pids", "cpuacct")
_numbers = itertools.count()
_REMOVE_SECONDS = 2.0


@dataclass(frozen=True)
class Parents:
    """Folders below which groups can be made, by controller; version 2 has one folder for all."""

    folders: Mapping[str, Path]
    version: int


def find(handed_over: str = "", mounts: str | None = None, own: str | None = None) -> Parents | None:
    """Find where groups that count memory can be made; None where they cannot.

    handed_over: a version 2 folder delegated to the grader, without processes in it.
    mounts, own: the texts of /proc/self/mountinfo and /proc/self/cgroup.
    """
    mounts = Path("/proc/self/mountinfo").read_text() if mounts is None else mounts
    own = Path("/proc/self/cgroup").read_text() if own is None else own
    paths = {}
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update({controller: path for controller in controllers.split(",")})
    unified, version_1 = _mounted(mounts)
    candidates = [Path(handed_over)] if handed_over else []
    if unified is not None and not handed_over:
        mine = _below(unified, paths.get("", "/"))
        candidates = [mine, *(p for p in mine.parents if p == unified or unified in p.parents)]
    for folder in candidates:
        if _offers_memory(folder):
            return Parents({"memory": folder}, 2)
    folders = {}
    for controller in _VERSION_1:
        for folder in _places(version_1.get(controller), paths.get(controller)):
            if os.access(folder, os.W_OK):
                folders[controller] = folder
                break
    return Parents(folders, 1) if "memory" in folders else None


@cache
def prepare(handed_over: str = "") -> Parents | None:
    """Return `find(handed_over)`, after removing the groups of graders and hubs that were killed."""
    parents = find(handed_over)
    if parents is not None:
        _sweep(parents)
    return parents


def _mounted(mounts: str) -> tuple[Path | None, dict[str, Path]]:
    """Return the mount point of version 2, and of each controller of version 1."""
    unified, version_1 = None, {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4])
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            unified = unified or point
        elif kind == "cgroup":
            version_1.update({option: point for option in options.split(",") if option in _VERSION_1})
    return unified, version_1


def _places(mount: Path | None, path: str | None) -> list[Path]:
    return [] if mount is None else [_below(mount, path or "/"), mount]


def _below(mount: Path, path: str) -> Path:
    """Return this process's own group, or the top where its group is not visible (in a container)."""
    folder = mount / path.lstrip("/")
    return folder if folder.is_dir() else mount


def _offers_memory(folder: Path) -> bool:
    """Return whether groups below this version 2 group can be made with a memory limit."""
    try:
        if not os.access(folder, os.W_OK):
            return False
        if "memory" in (folder / "cgroup.subtree_control").read_text().split():
            return True
        if (folder / "cgroup.procs").read_text().strip():  # then the kernel refuses
            return False
        (folder / "cgroup.subtree_control").write_text("+memory +pids")
        return "memory" in (folder / "cgroup.controllers").read_text().split()
    except OSError:
        return False


class Cgroup:
    """The control group of one sandbox, or of all sandboxes of a submission."""

    def __init__(self, parents: Parents, name: str) -> None:
        """name: that of an existing group."""
        self._version = parents.version
        self._folders = {controller: folder / name for controller, folder in parents.folders.items()}

    @classmethod
    def new(cls, parents: Parents, memory_bytes: int, processes: int) -> Cgroup:
        """Create a group. Raises `OSError`."""
        group = cls(parents, f"labkit-{os.getpid()}-{next(_numbers)}")
        group._create(memory_bytes, processes)
        return group

    @classmethod
    def of(cls, pid: int, parents: Parents) -> Cgroup | None:
        """Return the group below `parents` in which this process is; None if it is in none, or has ended."""
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except OSError:
            return None
        for _, controllers, path in (line.split(":", 2) for line in lines):
            name = Path(path).name
            if (controllers == "" or "memory" in controllers.split(",")) and name.startswith("labkit-"):
                return cls(parents, name)
        return None

    def _create(self, memory_bytes: int, processes: int) -> None:
        made: list[Path] = []
        try:
            for folder in self._folders.values():
                folder.mkdir()
                made.append(folder)
            if self._version == 1:
                self._write("memory", "memory.limit_in_bytes", memory_bytes)
                with contextlib.suppress(OSError, KeyError):  # swap is not counted, or there is none
                    self._write("memory", "memory.memsw.limit_in_bytes", memory_bytes)
                if "pids" in self._folders:
                    self._write("pids", "pids.max", processes)
            else:
                self._write("memory", "memory.max", memory_bytes)
                for file, value in (("memory.swap.max", 0), ("pids.max", processes)):
                    with contextlib.suppress(OSError):  # a controller that is not delegated
                        self._write("memory", file, value)
        except OSError:
            for folder in made:
                folder.rmdir()
            raise

    def add(self, pid: int) -> None:
        """Add this process, and everything it will start. Raises `OSError`."""
        for controller in self._folders:
            self._write(controller, "cgroup.procs", pid)

    def files(self) -> list[str]:
        """Return the files into which a process writes `0` to add itself, and everything it will start."""
        return [str(folder / "cgroup.procs") for folder in self._folders.values()]

    def memory_peak(self) -> int | None:
        """Return the peak bytes; None where the kernel does not record them."""
        return self._number("memory", "memory.max_usage_in_bytes" if self._version == 1 else "memory.peak")

    def memory(self) -> int | None:
        """Return the current bytes."""
        return self._number("memory", "memory.usage_in_bytes" if self._version == 1 else "memory.current")

    def memory_kills(self) -> int:
        """Return how many of its processes the kernel has killed for lack of memory."""
        file = "memory.oom_control" if self._version == 1 else "memory.events"
        return self._table("memory", file).get("oom_kill", 0)

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of its current and past processes; None where it is not counted."""
        if self._version == 1:
            nanoseconds = self._number("cpuacct", "cpuacct.usage")
            return None if nanoseconds is None else nanoseconds / 1e9
        microseconds = self._table("memory", "cpu.stat").get("usage_usec")
        return None if microseconds is None else microseconds / 1e6

    def processes(self) -> int | None:
        """Return the current number of processes and threads; None where they are not counted."""
        return self._number("pids" if self._version == 1 else "memory", "pids.current")

    def remove(self) -> None:
        """Remove the group after all its processes have ended."""
        limit = time.monotonic() + _REMOVE_SECONDS
        for folder in self._folders.values():
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:  # the kernel has not yet noticed the end of the last process
                    if time.monotonic() > limit:
                        break
                    time.sleep(0.005)

    def _write(self, controller: str, file: str, value: int) -> None:
        (self._folders[controller] / file).write_text(str(value))

    def _number(self, controller: str, file: str) -> int | None:
        try:
            return int((self._folders[controller] / file).read_text())
        except (OSError, KeyError, ValueError):
            return None

    def _table(self, controller: str, file: str) -> dict[str, int]:
        try:
            lines = (self._folders[controller] / file).read_text().splitlines()
        except (OSError, KeyError):
            return {}
        return {name: int(value) for name, _, value in (line.partition(" ") for line in lines) if value.isdigit()}


def _sweep(parents: Parents) -> None:
    for parent in parents.folders.values():
        for folder in parent.glob("labkit-*-*"):
            pid = folder.name.split("-")[1]
            if pid.isdigit() and not Path("/proc", pid).exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()
