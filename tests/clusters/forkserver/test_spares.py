"""Processes that are forked ahead serve the next run as fresh ones do, and are never in the way."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from clocks import ManualClock
from forkservers import launched_with
from waiting import wait_until

from labkit import Job, Run, local
from labkit.clusters.forkserver.client import ForkServer
from labkit.clusters.forkserver.processes_ahead import VARIABLE
from labkit.linux import proc
from labkit.linux.processes import descendants

WHAT_IT_HAS = """\
import os, sys, tempfile, multiprocessing.util, torch
{
    "pid": os.getpid(), "parent": os.getppid(), "folder": os.getcwd(), "variable": os.environ.get("LAB_SPARE_TEST"),
    "rank": os.environ["RANK"], "path": sys.path[0], "argv": sys.argv, "random": torch.rand(1).item(),
    "temporary": multiprocessing.util.get_temp_dir(), "descriptors": len(os.listdir("/proc/self/fd")),
    "main": sys.modules["__main__"].__dict__.get("left_behind"),
}
"""


# the others fail when rank 1 has ended: the diagnosis begins with what was first
ENDS = """\
import os, time
os.kill(os.getpid(), 11) if os.environ["RANK"] == "1" else None
while os.path.exists("/proc/{rank_1}"):
    time.sleep(0.01)
1 / 0
"""

QUIET_SECONDS = 2.0
"""More than a forkserver is quiet before it forks ahead, or waits until it looks again."""


def below(pid: int) -> dict[int, list[int]]:
    """The children of a process, with those that each has, as far as they have not ended."""
    children: dict[int, list[int]] = defaultdict(list)
    for one in proc.pids():
        with suppress(OSError):  # it has ended meanwhile
            if proc.stat(one)[0] != b"Z":
                children[proc.parent(one)].append(one)
    return {child: sorted(children[child]) for child in children[pid]}


class Rig:
    """A forkserver of its own, and what waits in it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.forkserver = ForkServer(launch=launched_with(self.clock))

    @property
    def pid(self) -> int:
        process: Any = self.forkserver.server.process
        return int(process.pid)

    def run(self, source: str, count: int) -> Run:
        return local(nproc_per_node=count, forkserver=self.forkserver).run(Job(source=source))

    def prepared(self, count: int) -> tuple[int, list[int]]:
        """The same as `waiting`, whatever ran before."""
        local(nproc_per_node=count, forkserver=self.forkserver).prepare()
        return self.waiting(count)

    def waiting(self, count: int) -> tuple[int, list[int]]:
        """Wait until there are so many spares: their supervisor's pid, and theirs."""
        found = self.until(lambda found: [len(pids) for pids in found.values()] == [count])
        ((supervisor, spares),) = found.items()
        return supervisor, spares

    def kill(self, pid: int) -> None:
        """Kill a process below the forkserver; return when it has ended, which may be later on a busy machine."""
        os.kill(pid, signal.SIGKILL)
        self.until(lambda found: pid not in {*found, *itertools.chain(*found.values())})

    def until(self, holds: Callable[[dict[int, list[int]]], bool]) -> dict[int, list[int]]:
        """Wait until this holds of the processes below the forkserver."""

        def reached() -> list[dict[int, list[int]]]:
            self.clock.advance(QUIET_SECONDS)
            return [found] if holds(found := below(self.pid)) else []

        return wait_until(reached, lambda: below(self.pid))[0]


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VARIABLE)
        made = Rig()
        made.run("0", 2).raise_if_failed()
        yield made
    pids = [made.pid, *descendants(made.pid)]
    made.forkserver.close()
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), lambda: "spares outlive their forkserver")


def test_they_serve_the_next_run_with_what_is_so_at_its_start(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, spares = rig.prepared(2)
    monkeypatch.setenv("LAB_SPARE_TEST", "set later")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    ahead = rig.run(f"left_behind = 1\n{WHAT_IT_HAS}", 2).raise_if_failed()
    assert [value["pid"] for value in ahead.values] == spares
    afresh = rig.run(WHAT_IT_HAS, 2).raise_if_failed()  # at once: there are none yet
    assert not {value["pid"] for value in afresh.values} & set(spares)
    own = ("pid", "parent", "random", "temporary")
    common = [[{k: v for k, v in value.items() if k not in own} for value in run.values] for run in (ahead, afresh)]
    for value in common[0]:
        assert value.pop("main") == 1
    for value in common[1]:
        assert value.pop("main") is None
    assert common[0] == common[1]
    assert common[0][0]["variable"] == "set later" and common[0][0]["folder"] == str(tmp_path)
    for run in (ahead, afresh):
        assert len({value["random"] for value in run.values}) == 2
        # data workers' files are in a folder that is removed with the run
        assert {Path(value["temporary"]).parts[-1] for value in run.values} == {f"labkit-{run.values[0]['parent']}"}
        assert not Path(run.values[0]["temporary"]).exists()
    assert ahead.values[0]["parent"] == supervisor


def test_a_run_of_another_shape_has_processes_of_its_own(rig: Rig) -> None:
    _, spares = rig.prepared(2)
    run = rig.run(WHAT_IT_HAS, 3).raise_if_failed()
    assert not {value["pid"] for value in run.values} & set(spares)
    _, spares = rig.waiting(3)  # and those of the former shape are gone
    run = rig.run(WHAT_IT_HAS, 3).raise_if_failed()
    assert [value["pid"] for value in run.values] == spares
    assert rig.run("0", 9).raise_if_failed().values == [0] * 9
    rig.until(lambda found: not found)  # so many are not kept waiting
    assert rig.run("0", 3).ok


def test_one_that_was_killed_is_replaced(rig: Rig) -> None:
    _, spares = rig.prepared(3)
    rig.kill(spares[1])
    run = rig.run(WHAT_IT_HAS, 3).raise_if_failed()
    first, second, third = (value["pid"] for value in run.values)
    assert [first, third] == [spares[0], spares[2]] and second != spares[1]


def test_without_their_supervisor_they_end(rig: Rig) -> None:
    supervisor, spares = rig.prepared(3)
    rig.kill(supervisor)
    run = rig.run(WHAT_IT_HAS, 3).raise_if_failed()
    assert not {value["pid"] for value in run.values} & set(spares)
    rig.until(lambda found: not {supervisor, *spares} & {*found, *itertools.chain(*found.values())})


def test_errors_and_signals_are_those_of_any_rank(rig: Rig) -> None:
    _, spares = rig.prepared(3)
    run = rig.run(ENDS.format(rank_1=spares[1]), 3)
    assert [result.exit for result in run.ranks] == [1, -signal.SIGSEGV, 1]
    assert "SIGSEGV on rank 1 at <cell>, line 2" in run.diagnosis()
    _, spares = rig.waiting(3)
    with pytest.raises(KeyboardInterrupt):
        local(nproc_per_node=3, forkserver=rig.forkserver).run(
            Job(source="print('here', flush=True)\nimport time\ntime.sleep(600)"), on_output=interrupt
        )
    assert not any(psutil.pid_exists(pid) for pid in spares)


def test_none_are_forked_while_a_run_is_under_way(rig: Rig, tmp_path: Path) -> None:
    _, spares = rig.prepared(3)
    source = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'end')!r}):\n    time.sleep(0.05)"
    run = threading.Thread(target=rig.run, args=(f"print('on', flush=True)\n{source}", 3))
    run.start()
    for _ in range(2):
        rig.clock.advance(QUIET_SECONDS)
        wait_until(lambda: rig.clock.seen)
        assert [*below(rig.pid).values()] == [spares]
    (tmp_path / "end").touch()
    run.join()
    assert rig.waiting(3)[1] != spares


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_none_wait_where_none_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    allowed = Rig()
    try:
        allowed.run("0", 2).raise_if_failed()
        allowed.run("0", 1).raise_if_failed()
        assert allowed.waiting(1)
        allowed.run("0", 2).raise_if_failed()
        allowed.until(lambda found: not found)
    finally:
        allowed.forkserver.close()


def test_nothing_waits_where_code_is_judged() -> None:
    forkserver = ForkServer(environment=dict(os.environ))
    try:
        local(nproc_per_node=2, forkserver=forkserver).run(Job(source="0")).raise_if_failed()
        assert forkserver.server.expected is None
    finally:
        forkserver.close()
