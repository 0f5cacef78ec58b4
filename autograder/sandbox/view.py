"""The file system view in the sandbox: a bubblewrap command that shows what a rank needs and nothing else.

The system, Python with its packages and labkit are visible, all read-only. The course (gradebook, submissions), the
grader (rubrics), solutions and this machine's own /etc are not.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterable
from pathlib import Path

import labkit
from autograder.sandbox.bwrap import bwrap
from labkit import catalogue

HOME = "/home/learner"
INSIDE = Path(__file__).parent / "inside"
"""Folder of the programs that run in the sandbox."""
SCRATCH = ("/tmp", "/dev/shm", HOME)

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")

_OF_PYTHON = ("bin", "include", "lib", "lib64", "pyvenv.cfg")
"""Visible parts of a folder in which Python is installed: it may be a home folder."""

_NEEDED = ("CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
"""Capabilities of root needed to make namespaces and to drop the rest."""


def bubblewrap(scratch_bytes: int = 16 << 20) -> list[str]:
    """Return a command that opens the view and runs what follows it, as the calling user.

    scratch_bytes: size of each in-memory folder; only these are writable. Raises `FileNotFoundError` where bubblewrap
    is not installed.
    """
    command = [*namespaces(), "--clearenv"]
    for name, value in environment().items():
        command += ["--setenv", name, value]
    command += system(scratch_bytes)
    command += installed(INSIDE)
    return [*command, "--remount-ro", "/", "--chdir", HOME, "--"]


def namespaces() -> list[str]:
    """Return the beginning of a bubblewrap command: new namespaces, and root's capabilities that are still needed."""
    command = [bwrap(), "--new-session", "--hostname", "learner"]
    command += ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if own_uids() is not None:
        return [*command, "--cap-drop", "ALL", *(part for name in _NEEDED for part in ("--cap-add", name))]
    return [*command, "--unshare-user"]


def system(scratch_bytes: int) -> list[str]:
    """Return the mounts of the system, read-only, of /proc and /dev, and of scratch folders of that size in memory."""
    command: list[str] = []
    for path in ("/etc", "/home", HOME, "/tmp"):
        command += ["--perms", "0755", "--dir", path]  # bubblewrap's default is private
    for path in _SYSTEM:
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            command += ["--ro-bind", path, path]
    for file in sorted((Path(__file__).parent / "etc").iterdir()):  # gloo looks up its own host
        command += ["--ro-bind", str(file), f"/etc/{file.name}"]
    command += ["--proc", "/proc", "--dev", "/dev", "--perms", "0755", "--dir", "/dev/shm", "--remount-ro", "/dev"]
    for path in SCRATCH:
        command += ["--perms", "1777", "--size", str(scratch_bytes), "--tmpfs", path]
    return command


def installed(*also: Path) -> list[str]:
    """Return the mounts of Python with its packages, of labkit and of these folders, read-only."""
    return _mounts([*_visible(), *also], _hidden())


def own_uids() -> range | None:
    """Return user ids that exist nowhere else, one for each sandbox; None where this process cannot switch to them.

    Root inside would be root outside, and limits on processes do not bind root.
    """
    if os.getuid() != 0:
        return None
    known = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    for users in (range(200_000, 1_200_000), range(20_000, 60_000)):
        if any(first <= users[0] and users[-1] < first + count for first, _, count in known):
            return users
    return None  # root of a container without other users


def environment() -> dict[str, str]:
    """Return all environment variables in the sandbox."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": HOME,
        "USER": "learner",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(str(folder.parent) for folder in (_labkit(), _autograder()))),
        **catalogue.own_environment(),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        # the C library returns freed blocks of this size or more at once, so that measured memory is memory in use
        "MALLOC_MMAP_THRESHOLD_": str(64 << 10),
    }


def python(module: str, options: str) -> list[str]:
    """Return a command that runs, in the sandbox, a module of `inside`, by its full name. options: JSON."""
    return [sys.executable, "-P", str(INSIDE / "launch.py"), module, options]


def _labkit() -> Path:
    return Path(labkit.__file__).resolve().parent


def _autograder() -> Path:
    return Path(__file__).resolve().parent.parent


def _visible() -> list[Path]:
    """Return the folders of Python with its packages, and of labkit with the given parts of all exercises."""
    installed = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent}
    parts = [folder / part for folder in installed for part in _OF_PYTHON]
    packages = [Path(folder) for folder in site.getsitepackages()]
    code = [folder.resolve() for folder in catalogue.code_folders()]
    return [path for path in {*parts, *packages, *code} if path.exists()]


def _hidden() -> list[Path]:
    """Return the folders of the grader and the rest of the course, wherever they lie."""
    names = ("autograder", "solutions", "notebooks", "course", "workspace")
    return [_autograder(), *(folder.resolve() / name for folder in catalogue.roots() for name in names)]


def _mounts(visible: Iterable[Path], hidden: Iterable[Path]) -> list[str]:
    """Return the mounts, outer folders first: visible ones read-only, hidden ones below them as empty folders."""
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
            # other submissions would see what is written there
            sealing += ["--remount-ro", str(path)]
            continue
        for parent in reversed(path.parents[:-1]):
            if parent not in made and not any(p in seen for p in (parent, *parent.parents)):
                command += ["--perms", "0755", "--dir", str(parent)]
                made.add(parent)
        command += ["--ro-bind", str(path), str(path)]
    return [*command, *sealing]
