"""A forkserver that nobody uses ends where the site says so, and no run fails because of it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from clocks import ManualClock
from forkservers import launched_with
from waiting import wait_until

from labkit import Job, Run, local, virtual
from labkit.clusters import Cluster
from labkit.clusters.forkserver import starting
from labkit.clusters.forkserver.client import ForkServer
from labkit.forking.held import Process
from labkit.hub.idle_minutes import VARIABLE

Launched = list[subprocess.Popen[bytes]]


@pytest.fixture
def launched() -> Launched:
    """The processes that a forkserver has started."""
    return []


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def forkserver_launched(
    launched: Launched, launch: Callable[[socket.socket, IO[bytes]], Process]
) -> Iterator[ForkServer]:
    def noted(control: socket.socket, errors: IO[bytes]) -> Process:
        launched.append(process := launch(control, errors))  # type: ignore[arg-type]
        return process

    made = ForkServer(launch=noted)
    yield made
    made.close()


@pytest.fixture
def forkserver(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    """Started as a site does it that lets it be idle for a moment."""
    monkeypatch.setenv(VARIABLE, "0.001")
    yield from forkserver_launched(launched, starting.launch)


@pytest.fixture
def patient(launched: Launched, clock: ManualClock) -> Iterator[ForkServer]:
    """It ends when it has been idle for a second of the clock."""
    yield from forkserver_launched(launched, launched_with(clock, idle_seconds=1.0))


def on_local(forkserver: ForkServer) -> Cluster:
    return local(nproc_per_node=1, forkserver=forkserver)


def in_processes(forkserver: ForkServer) -> Cluster:
    return virtual(nproc_per_node=1, ranks="processes", forkserver=forkserver)


@pytest.mark.parametrize("make", [on_local, in_processes])
def test_it_ends_after_the_last_run_and_the_next_run_starts_another(
    make: Callable[[ForkServer], Cluster], patient: ForkServer, launched: Launched, clock: ManualClock, tmp_path: Path
) -> None:
    for starts in (1, 2):
        end = tmp_path / f"end {starts}"
        source = (
            f"import os, time\nprint('on', flush=True)\nwhile not os.path.exists({str(end)!r}):\n    time.sleep(0.01)"
        )

        def hours_pass(*_: object, end: Path = end) -> None:
            clock.advance(3600.0)
            wait_until(lambda: clock.seen or launched[-1].poll() is not None)
            end.touch()

        make(patient).run(Job(source=source), on_output=hours_pass).raise_if_failed()
        assert launched[-1].poll() is None and len(launched) == starts, "it does not end while a run is under way"
        wait_until(lambda: clock.advance(1.0) or launched[-1].poll() is not None)
        assert launched[-1].returncode == 0


def test_the_site_says_how_long_it_may_be_idle(forkserver: ForkServer, launched: Launched) -> None:
    for starts in (1, 2):
        assert on_local(forkserver).run(Job(source="'done'")).raise_if_failed().values == ["done"]
        assert len(launched) == starts
        wait_until(lambda: launched[-1].poll() is not None)


def test_a_request_that_it_no_longer_reads_is_served_by_the_next(forkserver: ForkServer, launched: Launched) -> None:
    forkserver.start()
    launched[0].send_signal(signal.SIGSTOP)
    runs: list[Run] = []
    thread = threading.Thread(target=lambda: runs.append(on_local(forkserver).run(Job(source="'done'"))))
    thread.start()
    wait_until(lambda: forkserver._connections)
    with forkserver.server._lock:  # the request has been sent
        launched[0].kill()
    thread.join()
    assert (runs[0].raise_if_failed().values, len(launched)) == (["done"], 2)


def test_one_that_listens_no_longer_is_replaced_before_it_has_ended() -> None:
    processes: list[subprocess.Popen[bytes]] = []

    def launch(control: socket.socket, errors: IO[bytes]) -> Process:
        if processes:
            return starting.launch(control, errors)
        # it never gets the socket, of which no end but the client's is left then
        processes.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]))
        return processes[0]

    forkserver = ForkServer(launch=launch)
    assert on_local(forkserver).run(Job(source="'done'")).raise_if_failed().values == ["done"]
    assert processes[0].poll() == -signal.SIGKILL
    forkserver.close()
