"""A module of tests leaves nothing: processes, listening ports, shared memory and temporary files of it end with it.

What is still there fails the module, at the tear-down of its last test, with the test that made it. What a fixture of
the whole session makes in its set-up lasts as long as the session; `lasting` says the same of what is shared in another
way. The forkservers that modules share stay, too, but nothing that they have forked for a run.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import belongings
import pytest
from belongings import Process
from waiting import wait_until

from labkit.private_folders import cache_environment

STILL_SECONDS = 30.0
"""A process is left over when all that are left have slept for so long."""


class _Lasting:
    """What lasts as long as the session."""

    def __init__(self) -> None:
        self.processes: set[Process] = set()
        self.sockets: set[belongings.Socket] = set()
        self.files: set[str] = set()


_lasting = _Lasting()


@contextmanager
def lasting() -> Iterator[None]:
    """What begins in this context, and processes that it starts later, lasts as long as the session."""
    processes, sockets, files = _processes(), belongings.sockets([os.getpid()]), belongings.files()
    try:
        yield
    finally:
        _lasting.processes |= _processes() - processes
        _lasting.sockets |= belongings.sockets([os.getpid()]) - sockets
        _lasting.files |= belongings.files() - files


def _processes() -> set[Process]:
    return set(belongings.own(belongings.everything()).values())


class _Module:
    """What there was before a module, and when its tests were over."""

    def __init__(self) -> None:
        self._began = belongings.ticks()
        self._sockets = belongings.sockets([os.getpid()])
        self._files = belongings.files()
        self._first_seen: dict[str | belongings.Socket, str] = {}
        self._ends: list[tuple[int, str]] = []

    def test_is_over(self, test: str) -> None:
        """Look at what is cheap to look at."""
        self._ends.append((belongings.ticks(), test))
        for new in (belongings.files() - self._files, belongings.sockets([os.getpid()]) - self._sockets):
            for one in new:
                self._first_seen.setdefault(one, test)

    def left(self) -> list[str]:
        """Return a line for each thing that is left."""
        found = belongings.everything()
        lines = [
            f"process {one.pid}, begun in {self._running_at(one.started)}: {one.command or '(it has just ended)'}"
            for one in self._left_of(found)
        ]
        sockets = belongings.sockets([os.getpid(), *belongings.forkservers(found)])
        if sockets := sockets - self._sockets - _lasting.sockets:
            for socket, port in belongings.listening(sockets).items():
                owner = found[socket[0]]
                lines.append(f"port {port}, open in process {owner.pid} ({owner.command}) {self._after(socket)}")
        for file in sorted(belongings.files() - self._files - _lasting.files):
            if belongings.is_ours(file):
                lines.append(f"file {file}, there {self._after(file)}")
        return lines

    def processes(self) -> list[Process]:
        """Return the processes that are left."""
        return self._left_of(belongings.everything())

    def forkservers(self) -> list[Process]:
        """Return those that stay for other modules."""
        found = belongings.everything()
        return [found[pid] for pid in belongings.forkservers(found)]

    def _left_of(self, found: Mapping[int, Process]) -> list[Process]:
        ours = belongings.own(found)
        roots = [one.pid for one in _lasting.processes if ours.get(one.pid) == one]
        lasting = {*roots, *belongings.below(roots, ours)}
        return [one for one in ours.values() if one.started >= self._began and one.pid not in lasting]

    @property
    def _last(self) -> str:
        return self._ends[-1][1] if self._ends else "its first test, which was interrupted"

    def _after(self, found: str | belongings.Socket) -> str:
        return f"after {self._first_seen.get(found, self._last)}"

    def _running_at(self, ticks: int) -> str:
        """Return the test that ran at that time; two, if one ended in this tick."""
        tests = [test for end, test in self._ends if ticks <= end][: 1 + sum(end == ticks for end, _ in self._ends)]
        return " or ".join(tests or [self._last])


_module = pytest.StashKey[_Module]()


@pytest.fixture(autouse=True, scope="session")
def _marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Mark what this process makes: processes by their environment, temporary files by their folder."""
    tmp_path_factory.getbasetemp()  # stays in the system's folder
    folder = Path(tempfile.mkdtemp(prefix="lab-"))
    folder.chmod(0o1777)  # like the system's: tests start processes of other users
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(belongings.MARK, "1")
        # compiled code stays, for all processes of this user
        for name, value in cache_environment(os.environ).items():
            patch.setenv(name, value)
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True, scope="module")
def _nothing_left_over(_marked: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the module if anything is left when all of its own fixtures are torn down."""
    module = request.config.stash[_module] = _Module()
    yield
    del request.config.stash[_module]
    left = module.left()
    if left:
        still = _Still()
        wait_until(lambda: still.look(module.processes(), module.forkservers()), lambda: "\n".join(module.left()))
        gc.collect()  # sockets and memory of objects that refer to each other
        left = module.left()
    _lasting.sockets |= belongings.sockets(process.pid for process in module.forkservers())
    if left:
        for process in module.processes():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        pytest.fail("\n".join(["left over by this module:", *left]), pytrace=False)


class _Still:
    """Whether what is left will not end by itself: all processes only sleep, or are stopped.

    On a busy machine they end later; but then they do not sleep. Forkservers that sleep have also removed the files of
    those that have ended.
    """

    def __init__(self) -> None:
        self._seen: dict[Process, tuple[str, int] | None] = {}
        self._since = time.monotonic()

    def look(self, processes: list[Process], forkservers: list[Process]) -> bool:
        seen = {process: process.activity for process in [*processes, *forkservers]}
        if seen != self._seen or any(activity is None or activity[0] not in "ST" for activity in seen.values()):
            self._seen, self._since = seen, time.monotonic()
            return False
        return not processes or time.monotonic() - self._since >= STILL_SECONDS


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    if module := item.config.stash.get(_module, None):
        module.test_is_over(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    if fixturedef.scope != "session":
        return (yield)
    with lasting():
        return (yield)
