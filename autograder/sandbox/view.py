"""What can be seen from inside: a bubblewrap command that shows what a rank needs and nothing else.

The system, Python with its packages and labkit, all read-only. Neither the course (gradebook, submissions) nor the
grader (rubrics) nor solutions are there, nor this machine's own /etc.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterable
from pathlib import Path

import labkit
from autograder.sandbox.bwrap import bwrap
from labkit import exercises

HOME = "/home/learner"
INSIDE = "/inside"
"""Where the programs of `inside/` are shown."""
SCRATCH = ("/tmp", "/dev/shm", HOME)

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")

_OF_PYTHON = ("bin", "include", "lib", "lib64", "pyvenv.cfg")
"""All that is shown of a folder in which Python is installed: it may be somebody's home."""

_NEEDED = ("CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
"""Of root's capabilities, those that it takes to make namespaces and to give the rest up."""


def bubblewrap(scratch_bytes: int = 16 << 20) -> list[str]:
    """A command that opens the view and runs what follows it, as the calling user.

    scratch_bytes: size of each folder in memory that may be written; nothing else may. Raises `FileNotFoundError`
    where bubblewrap is not installed.
    """
    command = [bwrap(), "--new-session", "--hostname", "learner"]
    command += ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if own_uids() is not None:
        command += ["--cap-drop", "ALL", *(part for name in _NEEDED for part in ("--cap-add", name))]
    else:
        command += ["--unshare-user"]
    command += ["--clearenv"]
    for name, value in environment().items():
        command += ["--setenv", name, value]
    for path in ("/etc", "/home", HOME, "/tmp", INSIDE):
        command += ["--perms", "0755", "--dir", path]  # left to itself, bubblewrap makes them private
    for path in _SYSTEM:
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            command += ["--ro-bind", path, path]
    here = Path(__file__).parent
    for file in sorted((here / "etc").iterdir()):  # gloo looks its own host up
        command += ["--ro-bind", str(file), f"/etc/{file.name}"]
    command += ["--proc", "/proc", "--dev", "/dev", "--perms", "0755", "--dir", "/dev/shm", "--remount-ro", "/dev"]
    for path in SCRATCH:
        command += ["--perms", "1777", "--size", str(scratch_bytes), "--tmpfs", path]
    command += _mounts(_visible(), _hidden())
    command += ["--ro-bind", str(here / "inside"), f"{INSIDE}/enclosed"]
    return [*command, "--remount-ro", "/", "--chdir", HOME, "--"]


def own_uids() -> range | None:
    """Users that exist nowhere else, of which each sandbox can get one; None where this process cannot become them.

    Root inside would be root outside, and limits on processes do not bind root.
    """
    if os.getuid() != 0:
        return None
    known = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    for users in (range(200_000, 1_200_000), range(20_000, 60_000)):
        if any(first <= users[0] and users[-1] < first + count for first, _, count in known):
            return users
    return None  # root of a container that holds no other users


def environment() -> dict[str, str]:
    """All environment variables inside."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": HOME,
        "USER": "learner",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(_labkit().parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        # the C library gives back at once what is freed, from so many bytes on: memory that is counted is memory in use
        "MALLOC_MMAP_THRESHOLD_": str(64 << 10),
    }


def python(program: str, options: str) -> list[str]:
    """A command for inside that runs `inside/PROGRAM.py`. options: JSON."""
    return [sys.executable, "-P", f"{INSIDE}/enclosed/launch.py", INSIDE, program, options]


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


def _mounts(visible: Iterable[Path], hidden: Iterable[Path]) -> list[str]:
    """Mounts, outer folders first: what is visible read-only, what is hidden below it as an empty folder."""
    command: list[str] = []
    sealing: list[str] = []
    seen: dict[Path, bool] = {Path(path): True for path in _SYSTEM}
    made = {Path("/tmp"), Path("/home")}
    wanted = [(path, True) for path in visible] + [(path, False) for path in hidden]
    for path, show in sorted(wanted, key=lambda item: (len(item[0].parts), item[1])):
        if show == next((seen[parent] for parent in path.parents if parent in seen), False):
            continue
        seen[path] = show
        if not show:
            command += ["--tmpfs", str(path)]
            # what could be written there would be seen by other submissions
            sealing += ["--remount-ro", str(path)]
            continue
        for parent in reversed(path.parents[:-1]):
            if parent not in made and not any(p in seen for p in (parent, *parent.parents)):
                command += ["--perms", "0755", "--dir", str(parent)]
                made.add(parent)
        command += ["--ro-bind", str(path), str(path)]
    return [*command, *sealing]
