"""A forkserver that nobody uses ends where the site says so, and no run fails because of it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO

import pytest

from labkit import Job, Run, forkserver_process, local, virtual
from labkit.clusters import Cluster
from labkit.clusters.forkserver import ForkServer
from labkit.clusters.forkserver.client import LaunchedProcess
from labkit.idle_minutes import VARIABLE

LONGER_THAN_IDLE = "import time\ntime.sleep(0.5)\n'done'"

Launched = list[subprocess.Popen[bytes]]


@pytest.fixture
def launched() -> Launched:
    """The processes that `forkserver` has started."""
    return []


@pytest.fixture
def forkserver(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    monkeypatch.setenv(VARIABLE, "0.001")

    def launch(control: socket.socket, errors: IO[bytes]) -> LaunchedProcess:
        launched.append(forkserver_process.launch(control, errors))
        return launched[-1]

    made = ForkServer(launch=launch)
    yield made
    made.close()


def on_local(forkserver: ForkServer) -> Cluster:
    return local(nproc_per_node=1, forkserver=forkserver)


def in_processes(forkserver: ForkServer) -> Cluster:
    return virtual(nproc_per_node=1, ranks="processes", forkserver=forkserver)


@pytest.mark.parametrize("make", [on_local, in_processes])
def test_it_ends_after_the_last_run_and_the_next_run_starts_another(
    make: Callable[[ForkServer], Cluster], forkserver: ForkServer, launched: Launched
) -> None:
    for starts in (1, 2):
        run = make(forkserver).run(Job(source=LONGER_THAN_IDLE)).raise_if_failed()
        assert (run.values, len(launched)) == (["done"], starts), "it does not end while a run is under way"
        assert launched[-1].wait(300) == 0


def test_a_request_that_it_no_longer_reads_is_served_by_the_next(forkserver: ForkServer, launched: Launched) -> None:
    forkserver.start()
    launched[0].send_signal(signal.SIGSTOP)
    runs: list[Run] = []
    thread = threading.Thread(target=lambda: runs.append(on_local(forkserver).run(Job(source="'done'"))))
    thread.start()
    while not forkserver._connections:
        time.sleep(0.01)
    with forkserver._lock:  # the request has been sent
        launched[0].kill()
    thread.join()
    assert (runs[0].raise_if_failed().values, len(launched)) == (["done"], 2)


def test_one_that_listens_no_longer_is_replaced_before_it_has_ended() -> None:
    processes: list[subprocess.Popen[bytes]] = []

    def launch(control: socket.socket, errors: IO[bytes]) -> LaunchedProcess:
        if processes:
            return forkserver_process.launch(control, errors)
        # it never gets the socket, of which no end but the client's is left then
        processes.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]))
        return processes[0]

    forkserver = ForkServer(launch=launch)
    assert on_local(forkserver).run(Job(source="'done'")).raise_if_failed().values == ["done"]
    assert processes[0].poll() == -signal.SIGKILL
    forkserver.close()
