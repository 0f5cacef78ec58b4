"""The sandbox as configured by an instructor."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from traitlets import Bool, Float, Int, Type, Unicode
from traitlets.config import LoggingConfigurable

from autograder.sandbox.bwrap import describe
from autograder.sandbox.cgroups import prepare
from autograder.sandbox.limits import Limits
from autograder.sandbox.runner import Bubblewrap, NoIsolation, Runner
from autograder.sandbox.unavailable import SandboxUnavailable
from labkit.linux import landlock

if TYPE_CHECKING:
    from autograder.sandbox.instance import SandboxInstance


class Sandbox(LoggingConfigurable):
    """Sandbox settings: `c.Sandbox.NAME = VALUE`, or `--Sandbox.NAME=VALUE` on nbgrader's command line."""

    runner = Type(
        Bubblewrap, klass=Runner, help="What shuts submissions in: a class by its full name; see docs/sandbox.md."
    ).tag(config=True)
    allow_none = Bool(
        False, help="Where bubblewrap is missing, grade without any isolation. Only for code that you trust."
    ).tag(config=True)
    processes = Int(256, help="Processes and threads of one submission, all ranks together.").tag(config=True)
    memory_bytes = Int(4 << 30, help="Memory of one submission, all ranks together.").tag(config=True)
    scratch_bytes = Int(256 << 20, help="Size of /tmp, of /dev/shm and of the home folder, each.").tag(config=True)
    scratch_files = Int(
        65536, help="Number of files and folders in /tmp, in /dev/shm and in the home folder, each."
    ).tag(config=True)
    file_bytes = Int(256 << 20, help="Size of one file.").tag(config=True)
    cpu_seconds = Int(600, help="CPU time of one submission, all processes together.").tag(config=True)
    wall_seconds = Float(
        900, help="Time from a submission's first process to its end, as if no other program ran."
    ).tag(config=True)

    apart = Bool(
        True,
        help="Virtual ranks cannot reach each other but by messages that the judge routes. "
        "Each has a /tmp and a home of its own. Sockets do not work in them then.",
    ).tag(config=True)
    cgroups = Bool(
        True, help="Limit memory and processes by control groups where they can be made; else by a watchdog alone."
    ).tag(config=True)
    cgroup = Unicode(
        "", help="Folder of control groups, version 2, that is handed over to the grader (systemd: Delegate=yes)."
    ).tag(config=True)

    def check(self) -> None:
        """Raise `SandboxUnavailable` unless a sandbox can be made here or `allow_none` is set."""
        if not self.allow_none:
            _made(self.runner).check()

    @property
    def available(self) -> bool:
        """Return whether a sandbox can be made here."""
        try:
            _made(self.runner).check()
        except SandboxUnavailable:
            return False
        return True

    def means(self) -> str:
        """Describe the sandbox technology of this machine. Raises `SandboxUnavailable`."""
        self.check()
        parents = prepare(self.cgroup) if self.cgroups else None
        counted = "a watchdog" if parents is None else f"control groups, version {parents.version}"
        apart = "files, signals and sockets" if landlock.version() >= 6 else "files and sockets"
        return (
            f"{describe()}; memory is limited by {counted}; "
            f"ranks are kept apart in {apart if landlock.version() else 'sockets only'}"
        )

    def open(self) -> SandboxInstance:
        """Return a fresh sandbox for one submission. Raises `SandboxUnavailable`."""
        from autograder.sandbox.instance import SandboxInstance  # imports torch, which a check does not need

        self.check()
        runner = _made(self.runner) if self.available else NoIsolation()
        limits = Limits(
            processes=self.processes,
            memory_bytes=self.memory_bytes,
            scratch_bytes=self.scratch_bytes,
            scratch_files=self.scratch_files,
            file_bytes=self.file_bytes,
            cpu_seconds=self.cpu_seconds,
            wall_seconds=self.wall_seconds,
            apart=self.apart,
        )
        return SandboxInstance(runner, limits, prepare(self.cgroup) if self.cgroups else None, self.log)


@cache
def _made(kind: type[Runner]) -> Runner:
    return kind()
