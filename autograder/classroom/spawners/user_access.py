"""Finds what users of this machine cannot reach, by trying it as each of them. Only root can do that."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_ASK = """
for path; do [ -r "$path" ] && [ -x "$path" ] || echo "$path"; done
[ -d ~ ] && [ -w ~ ] && [ -x ~ ] || echo home
"""
_IMPORTS = "import jupyterhub, jupyterlab, nbgrader, labkit.hub.server"
_AUTOGRADER = "import autograder; print(autograder.__path__[0])"
_START_SECONDS = 120.0


def missing(people: Iterable[str], python: Path, folders: Sequence[Path]) -> Iterator[str]:
    """Yield one sentence for each thing that keeps users from a server, with the users concerned.

    python: interpreter of the servers. folders: what each user must be able to read.
    """
    wanted = [path for path in (python, *folders) if path.exists()]
    concerned: dict[str, list[str]] = defaultdict(list)
    ready = []
    for name in people:
        problems = list(_unreachable(name, wanted))
        for problem in problems:
            concerned[problem].append(name)
        if not problems:
            ready.append(name)
    for problem, names in concerned.items():
        yield f"{_listed(names)}: {problem}"
    if ready and python in wanted:
        yield from _of_start(ready[0], python)


def _unreachable(name: str, paths: Sequence[Path]) -> Iterator[str]:
    resolved = [end for path in paths for end in dict.fromkeys((path.absolute(), path.resolve()))]
    examined = list(dict.fromkeys(part for path in resolved for part in (*reversed(path.parents), path)))
    closed = _as(name, ["sh", "-c", _ASK, "sh", *map(str, examined)]).stdout.splitlines()
    for path in paths:
        ends = (path.absolute(), path.resolve())
        # where a link leads to a closed folder, the link is not the reason
        way = [part for end in ends for part in reversed(end.parents) if str(part) in closed] or [path]
        if str(ends[0]) in closed:
            yield f"cannot read {path}, since {way[0]} is closed to them: chmod o+rx {way[0]}, or move what they need"
    if "home" in closed:
        home = pwd.getpwnam(name).pw_dir
        yield f"cannot write to their homes, in {Path(home).parent}: make them, owned by their users"


def _of_start(name: str, python: Path) -> Iterator[str]:
    try:
        done = _as(name, [str(python), "-P", "-c", _IMPORTS])
    except subprocess.TimeoutExpired:
        yield f"{python} does not start within {_START_SECONDS:g} s as {name}"
        return
    except OSError as problem:
        yield f"{python} cannot be run as {name}: {problem.strerror}"
        return
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        yield (
            f"{python} cannot run a server as {name}: {lines[-1] if lines else f'status {done.returncode}'}; "
            "install labkit[lab] and jupyterhub with it"
        )


def exposed(people: Sequence[str], python: Path) -> Iterator[str]:
    """Yield one sentence if a user can read the checks that decide on marks. python: interpreter of the servers."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # then there is no server either
        for name in people[:1]:
            if folder := _as(name, [str(python), "-P", "-c", _AUTOGRADER]).stdout.strip():
                yield (
                    f"{name} can read the hidden checks of exercises, in {folder}: chmod go-rwx {folder}, or let "
                    "[servers.users] python be an environment without the autograder"
                )


def _as(name: str, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    user = pwd.getpwnam(name)
    return subprocess.run(
        command,
        user=user.pw_uid,
        group=user.pw_gid,
        extra_groups=os.getgrouplist(name, user.pw_gid),
        cwd="/",
        env={"PATH": os.defpath, "HOME": user.pw_dir, "LANG": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_START_SECONDS,
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
