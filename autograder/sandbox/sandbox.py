"""The sandbox: the only place where learners' code runs. Bubblewrap, showing what a rank needs and nothing else.

Inside: a network of its own with loopback only, its own processes, IPC and host name; the system, Python and labkit,
read-only; `/tmp`, `/dev/shm` and home in memory; a cleared environment; limits on processes, on memory and CPU time of
each, and on file size. Neither the course (gradebook, submissions) nor the grader (rubrics) nor solutions are there.
"""

from __future__ import annotations

import os
import secrets
import shutil
import site
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from traitlets import Bool, Int
from traitlets.config import LoggingConfigurable

import labkit
from labkit import exercises
from labkit.clusters.warm import WarmProcess

HOME = "/home/learner"

_FIRST_UID = 200_000
"""As root, each sandbox gets a user of its own from here on: limits on processes do not bind root."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")

_OF_PYTHON = ("bin", "lib", "lib64", "pyvenv.cfg")
"""All that is shown of a folder in which Python is installed: it may be somebody's home."""


class SandboxUnavailable(RuntimeError):
    """No sandbox can be made here; the message says why and what to do."""


class Enclosure:
    """One sandbox, for one submission: `warm` starts ranks in it. To be used in a `with` statement."""

    def __init__(self, warm: WarmProcess) -> None:
        self.warm = warm

    def __enter__(self) -> Enclosure:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all that is in it."""
        self.warm.close()


class Sandbox(LoggingConfigurable):
    """How learners' code is shut in: `c.Sandbox.NAME = VALUE`, or `--Sandbox.NAME=VALUE` on nbgrader's command line."""

    allow_none = Bool(
        False, help="Where bubblewrap is missing, grade without any isolation. Only for code that you trust."
    ).tag(config=True)
    processes = Int(256, help="Processes and threads of one submission, all ranks together.").tag(config=True)
    memory_bytes = Int(4 << 30, help="Private memory of one process.").tag(config=True)
    scratch_bytes = Int(256 << 20, help="Size of /tmp, of /dev/shm and of the home folder, each.").tag(config=True)
    cpu_seconds = Int(300, help="CPU time of one process.").tag(config=True)

    def check(self) -> None:
        """Raise `SandboxUnavailable` unless a sandbox can be made here or `allow_none` is set."""
        if not self.allow_none:
            _probe()

    @property
    def available(self) -> bool:
        """Can a sandbox be made here?"""
        try:
            _probe()
        except SandboxUnavailable:
            return False
        return True

    def command_prefix(self) -> tuple[str, ...]:
        """What to put before a command to run it in a fresh sandbox; nothing where none can be made and none is needed.

        Raises `SandboxUnavailable` where one is needed.
        """
        self.check()
        if not self.available:
            return ()
        limits = (
            *("prlimit", f"--nproc={self.processes}", f"--data={self.memory_bytes}", f"--cpu={self.cpu_seconds}"),
            *(f"--fsize={self.scratch_bytes}", "--nofile=1024", "--core=0", "--"),
        )
        return (*_bubblewrap(self.scratch_bytes), *_drop_root(), *limits)

    def environment(self) -> dict[str, str]:
        """All environment variables that a command with this prefix needs."""
        return _environment()

    def open(self) -> Enclosure:
        """A fresh sandbox for one submission. Raises `SandboxUnavailable`."""
        return Enclosure(WarmProcess(self.command_prefix(), self.environment()))


@cache
def _probe() -> None:
    """Start Python in a sandbox once; raises `SandboxUnavailable` when that fails."""
    missing = [tool for tool in ("bwrap", "prlimit", "setpriv") if shutil.which(tool) is None]
    if missing:
        _refuse(f"{', '.join(missing)} not found (Debian's packages: bubblewrap, util-linux)")
    command = [*_bubblewrap(2**20), *_drop_root(), sys.executable, "-c", "import labkit; print('inside')"]
    tried = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if tried.stdout != "inside\n":
        _refuse(f"bubblewrap does not work here: {tried.stderr.strip() or f'exit code {tried.returncode}'}")


def _refuse(reason: str) -> None:
    raise SandboxUnavailable(
        f"No sandbox for learners' code: {reason}. Nothing was graded. "
        "Install bubblewrap and allow user namespaces, or grade code that you trust with --Sandbox.allow_none=True."
    )


def _bubblewrap(scratch_bytes: int) -> list[str]:
    """A command that opens the sandbox and runs what follows it, still as the calling user."""
    command = ["bwrap", "--die-with-parent", "--new-session", "--hostname", "learner"]
    command += ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if os.getuid() != 0:
        command += ["--unshare-user"]
    command += ["--clearenv"]
    for name, value in {**_environment(), "HOME": HOME, "USER": "learner"}.items():
        command += ["--setenv", name, value]
    for path in ("/etc", "/home", "/tmp"):
        command += ["--perms", "0755", "--dir", path]  # left to itself, bubblewrap makes them private
    for path in _SYSTEM:
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            command += ["--ro-bind", path, path]
    for file in sorted((Path(__file__).parent / "etc").iterdir()):  # gloo looks its own host up
        command += ["--ro-bind", str(file), f"/etc/{file.name}"]
    command += ["--proc", "/proc", "--dev", "/dev"]
    for path in ("/tmp", "/dev/shm", HOME):
        command += ["--perms", "1777", "--size", str(scratch_bytes), "--tmpfs", path]
    return [*command, *_view(_visible(), _hidden()), "--remount-ro", "/", "--chdir", HOME, "--"]


def _drop_root() -> list[str]:
    """Root inside would be root outside: become a user that exists nowhere else, with no privilege left."""
    if os.getuid() != 0:
        return []
    uid = str(_FIRST_UID + secrets.randbelow(1_000_000))
    become = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups"]
    return [*become, "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]


def _environment() -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(_labkit().parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _labkit() -> Path:
    return Path(labkit.__file__).resolve().parent


def _visible() -> list[Path]:
    """Python with its packages, and labkit."""
    installed = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent}
    parts = [folder / part for folder in installed for part in _OF_PYTHON]
    packages = [Path(folder) for folder in site.getsitepackages()]
    return [path for path in {*parts, *packages, _labkit()} if path.exists()]


def _hidden() -> list[Path]:
    """The grader and the rest of the course, wherever they lie."""
    course = exercises.root().resolve()
    names = ("autograder", "solutions", "notebooks", "course", "workspace")
    return [Path(__file__).resolve().parent.parent, *(course / name for name in names)]


def _view(visible: Iterable[Path], hidden: Iterable[Path]) -> list[str]:
    """Mounts, outer folders first: what is visible read-only, what is hidden below it as an empty folder."""
    command: list[str] = []
    seen: dict[Path, bool] = {Path(path): True for path in _SYSTEM}
    made = {Path("/tmp"), Path("/home")}
    wanted = [(path, True) for path in visible] + [(path, False) for path in hidden]
    for path, show in sorted(wanted, key=lambda item: (len(item[0].parts), item[1])):
        if show == next((seen[parent] for parent in path.parents if parent in seen), False):
            continue
        seen[path] = show
        if not show:
            command += ["--tmpfs", str(path)]
            continue
        for parent in reversed(path.parents[:-1]):
            if parent not in made and not any(p in seen for p in (parent, *parent.parents)):
                command += ["--perms", "0755", "--dir", str(parent)]
                made.add(parent)
        command += ["--ro-bind", str(path), str(path)]
    return command
