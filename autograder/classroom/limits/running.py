"""The servers that a hub runs on this machine, of either kind, and where their learners' files are."""

from __future__ import annotations

import os
from pathlib import Path

from autograder.classroom.folders import Folders
from autograder.classroom.limits import sandboxes, users
from autograder.classroom.limits.sandboxes import RunningServer


def servers(folders: Folders, hub: int) -> list[RunningServer]:
    """Return the servers of the hub with this PID."""
    return list(users.running(hub) if folders.shares_exchange else sandboxes.running(hub, folders.homes))


def own_folders(folders: Folders, server: RunningServer) -> list[Path]:
    """Return the folders of a learner's files: the home and the submissions."""
    learner = server.learner
    if not isinstance(server, users.UserServer):
        return [folders.home(learner), folders.in_exchange("inbound", learner)]
    submissions = folders.in_exchange("inbound").glob(f"{learner}+*")
    own = [path for path in submissions if _owner(path) == server.uid]
    return [Path(os.path.expanduser(f"~{learner}")).resolve(), *own]


def _owner(path: Path) -> int | None:
    """Return the owner of a file; None when it is gone, since it was collected."""
    try:
        return path.lstat().st_uid
    except OSError:
        return None
