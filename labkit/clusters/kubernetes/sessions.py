"""Which runs belong to a notebook that is no longer there: they are deleted when the next one begins.

Every kernel holds a lock on a file of its own for as long as it lives, also when it is killed; its objects on the
cluster carry the file's name as a label. Only kernels of this machine and user are looked at.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import secrets
from pathlib import Path

from labkit.clusters.kubernetes import trainjob
from labkit.clusters.kubernetes.api import Api, Refused
from labkit.clusters.kubernetes.manifest import HOME_LABEL, SESSION_LABEL

_KINDS = (("batch/v1", "Job"), ("v1", "Service"), ("v1", "Secret"))


@functools.cache
def session() -> str:
    """This process's session; its lock is held until the process ends."""
    name = secrets.token_hex(8)
    descriptor = os.open(_file(name), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return name


def home() -> str:
    """This machine and user, made up once."""
    file = _folder() / "home"
    if not file.exists():
        # whole or not at all: other kernels may begin at this moment
        new = file.with_name(f"home-{os.getpid()}")
        new.write_text(secrets.token_hex(8))
        with contextlib.suppress(FileExistsError):
            os.link(new, file)
        new.unlink()
    return file.read_text()


def delete_orphans(api: Api, with_train_jobs: bool) -> int:
    """Delete what dead sessions have left in the namespace; returns how many objects."""
    kinds = [(f"{trainjob.GROUP}/{trainjob.VERSION}", "TrainJob")] * with_train_jobs + [*_KINDS]
    deleted, alive = 0, {session(): True}
    for version, kind in kinds:
        try:
            found = api.get(api.path(version, kind), labelSelector=f"{HOME_LABEL}={home()}")["items"]
        except Refused:  # who may not list them may still run something
            continue
        for thing in found:
            owner = thing["metadata"]["labels"].get(SESSION_LABEL, "")
            if owner not in alive:
                alive[owner] = _is_alive(owner)
            if not alive[owner]:
                api.delete(api.path(version, kind, thing["metadata"]["name"]))
                deleted += 1
    for name, still_there in alive.items():
        if not still_there:
            _file(name).unlink(missing_ok=True)
    return deleted


def _is_alive(name: str) -> bool:
    try:
        descriptor = os.open(_file(name), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _file(name: str) -> Path:
    return _folder() / f"session-{name}"


def _folder() -> Path:
    folder = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "labkit" / "kubernetes"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
