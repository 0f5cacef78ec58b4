"""The servers of users of this machine that a hub has started, and everything that runs as the same user.

A learner's processes are those of the user, also from a login shell or cron: nothing else tells which of them came from
the server, since a program can leave its parents.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass

from autograder.classroom.limits.sandboxes import RunningServer
from labkit.linux import proc


@dataclass(frozen=True)
class UserServer(RunningServer):
    """The server of a user of this machine; `first` is the server itself."""

    uid: int = -1

    def pids(self) -> list[int]:
        """Return the PIDs of all processes of the user."""
        return [pid for pid in proc.pids() if _user_of(pid) == self.uid]

    def kept(self) -> set[int]:
        """Return the PID of the server."""
        return {self.first}


def running(hub: int) -> Iterator[UserServer]:
    """Yield the servers of the hub with this PID: its children that are another user's."""
    own = os.geteuid()
    for pid in proc.children(hub):
        uid = _user_of(pid)
        if uid is not None and uid != own:
            with contextlib.suppress(KeyError, OSError):  # it has ended meanwhile
                yield UserServer(pwd.getpwuid(uid).pw_name, pid, proc.started(pid), uid=uid)


def _user_of(pid: int) -> int | None:
    """Return the user who has started a process, whatever rights it has; None when it has ended."""
    try:
        return proc.table(f"{pid}/status")["Uid"]
    except (OSError, KeyError):
        return None
