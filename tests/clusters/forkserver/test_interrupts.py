"""Ctrl-C at any moment of a run, even between two steps of the lab's own code: nothing is left, the next run works."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from waiting import wait_until

from labkit import Job, local
from labkit.clusters.forkserver import client
from labkit.clusters.forkserver.client import ForkServer
from labkit.clusters.forkserver.interrupts import held, let_through
from labkit.clusters.local import cluster
from labkit.linux.processes import descendants

CLIENT = (str(Path(client.__file__).parent), cluster.__file__)
SOURCE = "print('one')\n1"


class InterruptAt:
    """A trace function that sends SIGINT to this process at the `moment`-th line of the client's code."""

    def __init__(self, moment: float) -> None:
        self.moment = moment
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(CLIENT):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.moment:
                signal.raise_signal(signal.SIGINT)
        return self


def run_interrupted(forkserver: ForkServer, moment: float) -> int:
    """Run once, with an interrupt at that line. Returns how many lines were passed."""
    trace = InterruptAt(moment)
    try:
        sys.settrace(trace)
        try:
            local(nproc_per_node=1, forkserver=forkserver).run(Job(source=SOURCE), lambda *_: None)
        finally:
            sys.settrace(None)
    except KeyboardInterrupt:
        pass
    return trace.lines


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def wait_until_only(pids: set[int]) -> None:
    """A supervisor that has reported the end of its run ends a moment later."""
    wait_until(lambda: not set(descendants(os.getpid())) - pids, lambda: descendants(os.getpid()), 0.001)


def interrupt_at_many_moments() -> list[Any]:
    """Interrupt sixty runs, checking after each; return the values of one more."""
    # a separate forkserver, so that leftovers of earlier runs in this process are not mistaken for new ones; with an
    # environment of its own it forks nothing ahead, which would be mistaken for what an interrupt has left
    with contextlib.closing(ForkServer(environment=dict(os.environ))) as forkserver:
        run_interrupted(forkserver, -1)
        servers = set(descendants(os.getpid()))
        lines, files = run_interrupted(forkserver, -1), open_files()
        for moment in sorted(random.Random(4).sample(range(1, lines + 1), 60)):
            run_interrupted(forkserver, moment)
            wait_until_only(servers)
            assert open_files() <= files, f"interrupted at line {moment} of {lines}"
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        return local(nproc_per_node=1, forkserver=forkserver).run(Job(source=SOURCE)).values


def test_an_interrupt_between_any_two_steps_leaves_nothing() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        assert process.submit(interrupt_at_many_moments).result() == [1]


def test_an_interrupt_waits_while_something_is_held() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), held():
        signal.raise_signal(signal.SIGINT)
        steps.append("held")
        with held():
            steps.append("held within")
        try:
            with let_through():
                steps.append("not reached")
        finally:
            signal.raise_signal(signal.SIGINT)
            steps.append("cleaned up")
    assert steps == ["held", "held within", "cleaned up"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_ends_a_wait_and_is_raised_once() -> None:
    with held():
        main, begun = threading.main_thread().ident or 0, threading.Event()
        threading.Thread(target=lambda: begun.wait() and signal.pthread_kill(main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt), let_through():
            begun.set()
            wait_until(lambda: False)  # Python misses an interrupt that comes just before a wait without end begins
        with let_through():
            pass
    with held():
        pass


def test_a_handler_of_the_learners_own_is_called() -> None:
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        with held():
            signal.raise_signal(signal.SIGINT)
            assert seen == []
            with let_through():
                assert seen == [1]
                signal.raise_signal(signal.SIGINT)
            assert seen == [1, 1]
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_torch_is_imported_withdraws_the_run_and_keeps_the_import(tmp_path: Path) -> None:
    go, ran = tmp_path / "go", tmp_path / "ran"
    slow = f'until [ -e "{go}" ]; do sleep 0.1; done; exec "$@"'
    forkserver = ForkServer(command_prefix=["sh", "-c", slow, "sh"])
    cluster = local(nproc_per_node=1, forkserver=forkserver)

    def interrupt_once_it_waits() -> None:
        wait_until(lambda: forkserver._connections)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    try:
        threading.Thread(target=interrupt_once_it_waits).start()
        with pytest.raises(KeyboardInterrupt):
            cluster.run(Job(source=f"open({str(ran)!r}, 'w')"))
        importing = forkserver.server.process
        go.touch()
        assert cluster.run(Job(source="1")).values == [1]
        assert forkserver.server.process is importing and not ran.exists()
    finally:
        forkserver.close()
