"""Folders of this user alone: for caches whose files are executed, and for files that name a secret.

torch.compile keeps its code under a name in the temporary folder that anybody can predict: `torchinductor_USER`.
Another user may have made that folder before, and change what is executed from it. Here such caches lie below the
user's own cache folder, closed to others, and are checked before each use.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "QUACK_CACHE_DIR": "quack",
}
"""Environment variables that name a cache of compiled code, and its folder: of torch.compile, Triton, torch's and
DeepSpeed's extensions in C++, and the kernels that torch brings for CUTLASS."""
SETTINGS = {
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    "TORCHINDUCTOR_ENABLE_CACHING_MODULE": "0",
    "QUACK_COMPILE_WORKERS": "1",
}
"""Environment variables that keep torch from using names in the temporary folder that no variable moves elsewhere:
precompiled headers, pickled decisions of its compiler (`torchinductor_USER/cache`), and the sources that processes
which compile kernels for CUTLASS execute (`quack_generated_epilogues`): with one worker there are no such processes."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_ELSEWHERE = "remove it, or set XDG_CACHE_HOME to a folder of yours"


class NotPrivate(Exception):
    """A folder can be changed by other users; the message says which, and what to do."""


def private_folder(name: str) -> Path:
    """Return the folder `labkit/NAME` below the user's cache folder, made and closed to others.

    The cache folder is `$XDG_CACHE_HOME` or `~/.cache`. Raises `NotPrivate` if another user could have put files there;
    OSError if it cannot be made.
    """
    home = Path.home()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    way = [cache, cache / "labkit", cache / "labkit" / name]
    # as sshd does, what leads to the home folder is trusted
    _check_way(home if cache.is_relative_to(home) else cache.parent)
    for folder in way:
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_way(folder)
    for folder in way[1:]:
        _close(folder)
    return way[-1]


def cache_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make a process with environment `given` keep compiled code in private folders alone.

    What the user has set stays. Where the user's cache folder is not private, or cannot be written, they lie in a
    temporary folder of this process.
    """
    missing = {variable: folder for variable, folder in CACHES.items() if not _is_chosen(given.get(variable))}
    variables = {variable: str(_cache(folder)) for variable, folder in missing.items()}
    return variables | {variable: value for variable, value in SETTINGS.items() if not given.get(variable)}


def _is_chosen(folder: str | None) -> bool:
    """Whether a variable's value is the user's choice: at its first use, torch writes its own default into it."""
    return bool(folder) and not str(folder).startswith(os.path.join(tempfile.gettempdir(), "torchinductor_"))


def _cache(name: str) -> Path:
    try:
        return private_folder(name)
    except (NotPrivate, OSError, RuntimeError):  # RuntimeError: no home folder is known
        folder = Path(_temporary(os.getpid()), name)
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder


@functools.cache
def _temporary(process: int) -> str:
    """Return a new folder, removed at the end of `process`, which is this one: a fork makes its own."""
    folder = tempfile.mkdtemp(prefix="labkit-caches-")

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def _check_way(folder: Path) -> None:
    """Raise `NotPrivate` if another user than root can rename or replace what is in `folder`, or that itself."""
    link, found = folder.lstat(), folder.stat()
    if not {link.st_uid, found.st_uid} <= {0, os.geteuid()}:
        raise NotPrivate(f"{folder} belongs to another user: {_ELSEWHERE}")
    sticky = found.st_uid == 0 and found.st_mode & stat.S_ISVTX
    if found.st_mode & _OTHERS_WRITE and not sticky and not _only_own_group_writes(found):
        raise NotPrivate(f"other users can write into {folder}: close it by `chmod go-w {folder}`")


def _only_own_group_writes(found: os.stat_result) -> bool:
    """Whether the group that may write is the user's own, which has the user's name and no other member."""
    import grp
    import pwd

    if found.st_mode & stat.S_IWOTH:
        return False
    try:
        group, user = grp.getgrgid(found.st_gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _close(folder: Path) -> None:
    """Make sure that `folder` is this user's and closed to others. Raises `NotPrivate`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise NotPrivate(f"{folder} belongs to another user: {_ELSEWHERE}")
        if found.st_mode & _OTHERS:
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)
