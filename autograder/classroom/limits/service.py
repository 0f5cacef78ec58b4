"""Looks at all learners' servers, several times a minute, and ends what is beyond the limits. A service of the hub."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import NoReturn

from autograder.classroom import configured
from autograder.classroom.folders import Folders
from autograder.classroom.limits.disk import DiskLimit, used_bytes
from autograder.classroom.limits.memory import MemoryLimit
from autograder.classroom.limits.notices import NoticeWriter
from autograder.classroom.limits.running import own_folders, servers
from autograder.classroom.limits.sandboxes import RunningServer
from autograder.sandbox import cgroups

_MEMORY_SECONDS, _DISK_SECONDS = 0.5, 5.0
"""Minimum seconds between two looks at memory, and at disk."""
_SHARE = 0.1
"""Maximum share of one core for each kind of looks."""
_GIB = 1 << 30

log = logging.getLogger("limits")


class Looks:
    """Looks at servers on behalf of a hub."""

    def __init__(
        self,
        folders: Folders,
        hub: int,
        memory_bytes: int,
        disk_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """hub: PID of JupyterHub. memory_bytes, disk_bytes: limits of each learner; 0: none. clock: in seconds."""
        self._clock = clock
        self._folders, self._hub = folders, hub
        self._memory = MemoryLimit(memory_bytes, cgroups.prepare()) if memory_bytes else None
        self._disk = DiskLimit(disk_bytes) if disk_bytes else None
        self._disk_bytes = disk_bytes
        self._homes = folders.homes
        self._seen: dict[str, set[RunningServer]] = {}

    def at_memory(self) -> None:
        """Look at the memory of each server."""
        if self._memory is None:
            return
        for server in self._running("memory", self._memory.forget):
            self._memory.look(server, self._notify(server))

    def at_disk(self) -> None:
        """Look at what each learner with a server has on disk."""
        if self._disk is None or not (running := self._running("disk", self._disk.forget)):
            return
        own = {server: own_folders(self._folders, server) for server in running}
        self._homes = next(iter(own.values()))[0].parent
        used = used_bytes([folder for folders in own.values() for folder in folders])
        for server, folders in own.items():
            total = sum(used[folder] for folder in folders)
            NoticeWriter(self._folders.notices(server.learner)).set_disk(total)
            self._disk.look(server, total, self._notify(server))

    def wait_for_writing(self, seconds: float) -> None:
        """Wait for `seconds`, or until the disk has much less free space than now."""
        limit = self._clock() + seconds
        free = shutil.disk_usage(self._homes).free
        while self._clock() < limit and shutil.disk_usage(self._homes).free > free - self._disk_bytes // 20:
            time.sleep(0.5)

    def _running(self, kind: str, forget: Callable[[RunningServer], None]) -> list[RunningServer]:
        running = servers(self._folders, self._hub)
        for ended in self._seen.get(kind, set()) - set(running):
            forget(ended)
        self._seen[kind] = set(running)
        return running

    def _notify(self, server: RunningServer) -> Callable[[str], None]:
        def notify(text: str) -> None:
            log.warning("%s: %s", server.learner, text)
            NoticeWriter(self._folders.notices(server.learner)).notify(text)

        return notify


def main() -> None:
    """Look until the hub ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # at once: Python would wait for the looks, which never end
    logging.basicConfig(level=logging.INFO, format="[%(levelname).1s %(asctime)s limits] %(message)s")
    classroom = configured.from_environment()
    limits = classroom.site.servers
    memory, disk = (round(gib * _GIB) for gib in (limits.memory_gib, limits.disk_gib))
    looks = Looks(classroom.folders, os.getppid(), memory, disk)
    pool = ThreadPoolExecutor()
    under_way = [
        *([pool.submit(_repeat, looks.at_memory, _MEMORY_SECONDS, time.sleep)] if memory else []),
        *([pool.submit(_repeat, looks.at_disk, _DISK_SECONDS, looks.wait_for_writing)] if disk else []),
    ]
    for failed in wait(under_way, return_when=FIRST_EXCEPTION).done:
        log.critical(
            "a look has failed; the hub starts this service again within half a minute", exc_info=failed.exception()
        )
    os._exit(1)  # the other thread would go on


def _repeat(look: Callable[[], None], at_least_seconds: float, pause: Callable[[float], None]) -> NoReturn:
    while True:
        began = time.monotonic()
        look()
        pause(max(at_least_seconds, (time.monotonic() - began) / _SHARE))


if __name__ == "__main__":
    main()
