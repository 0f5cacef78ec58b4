"""The same script under torchrun and in a cell on local ranks: what each rank sees, and how each ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from clocks import ManualClock
from forkservers import forkserver_that_reads_clocks
from waiting import wait_until

from labkit import Job, local
from labkit.clusters import State
from labkit.clusters.forkserver.supervisor import FAILURE_GRACE_SECONDS

TELL = """
import json, os, signal, sys, time
from pathlib import Path
def tell(what):
    name = f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-{os.environ['RANK']}"
    Path(os.environ["TOLD"], name).write_text(json.dumps(what))
"""
ENVIRONMENT = TELL + "tell(dict(os.environ))"
FAILS_AT_FIRST = (
    TELL
    + """
tell("started")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "1":
        while not Path(os.environ["TOLD"], "0-0").exists():
            time.sleep(0.01)
        sys.exit(3)
    time.sleep(600)
"""
)
SAVES = (
    TELL
    + """
def save(number, frame):
    tell(signal.Signals(number).name)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
tell("started")
if os.environ["RANK"] == "1":
    while not Path(os.environ["TOLD"], f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-0").exists():
        time.sleep(0.01)
    sys.exit(5)
time.sleep(600)
"""
)
KILLED = TELL + "tell('started')\nos.kill(os.getpid(), signal.SIGTERM)"
MESSAGE = TELL + "tell('started')\nsys.exit('a message')"


@dataclass(frozen=True)
class Ended:
    told: dict[str, object]
    """What each rank reported, by start and rank."""
    failed: set[int]
    """Exit codes of the last start's ranks that failed."""


def with_torchrun(script: str, ranks: int, restarts: int, folder: Path) -> Ended:
    file, told = folder / "script.py", folder / "torchrun"
    file.write_text(script)
    told.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {**os.environ, "TOLD": str(told)}
    done = subprocess.run(
        [*command, f"--max-restarts={restarts}", str(file)],
        env=environment,
        capture_output=True,
        text=True,
    )
    codes = {int(code) for code in re.findall(r"exitcode +: (-?\d+)", done.stderr)}
    assert bool(codes) == (done.returncode != 0), done.stderr
    return Ended(_told(told), codes)


PROCESSES = "import os; print('processes', os.getppid(), os.getpid(), flush=True)\n"


class Grace:
    """The time that other ranks have after one has failed, which passes; then those sent SIGTERM have all the time."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._supervisor = 0
        self._ranks: set[int] = set()
        self._thread: threading.Thread | None = None

    def on_output(self, rank: int, stream: str, text: str) -> None:
        if found := re.match(r"processes (\d+) (\d+)", text):
            self._supervisor = int(found[1])
            self._ranks.add(int(found[2]))

    def on_state(self, state: State) -> None:
        if state.ended and self._thread is None:
            self._thread = threading.Thread(target=self._pass, daemon=True)
            self._thread.start()

    def _pass(self) -> None:
        wait_until(lambda: any(not psutil.pid_exists(pid) for pid in self._ranks))
        self.clock.advance(0.0)
        # the supervisor has reaped it, and then knows until when it waits for the others
        with suppress(ProcessLookupError):  # there are none
            wait_until(lambda: os.kill(self._supervisor, signal.SIGCHLD) or self.clock.seen)
        self.clock.advance(FAILURE_GRACE_SECONDS)


def in_a_cell(script: str, ranks: int, restarts: int, folder: Path) -> Ended:
    told = folder / "cell"
    told.mkdir()
    job = Job(source=PROCESSES + script, max_restarts=restarts, environment={"TOLD": str(told)})
    grace = Grace()
    with forkserver_that_reads_clocks(supervisor_clock=grace.clock) as server:
        run = local(nproc_per_node=ranks, forkserver=server).run(job, grace.on_output, grace.on_state)
    return Ended(_told(told), {result.exit for result in run.ranks if result.exit})


def _told(folder: Path) -> dict[str, object]:
    return {path.name: json.loads(path.read_text()) for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("restarts", [0, 2])
def test_ranks_see_the_same_variables(tmp_path: Path, restarts: int) -> None:
    theirs = with_torchrun(ENVIRONMENT, 2, restarts, tmp_path).told
    ours = in_a_cell(ENVIRONMENT, 2, restarts, tmp_path).told
    assert list(ours) == list(theirs) == ["0-0", "0-1"]
    for rank, told in theirs.items():
        their, our = told, ours[rank]
        assert isinstance(their, dict) and isinstance(our, dict)
        more = set(our) - set(their)
        assert set(their) - set(our) <= {"PYTHONUNBUFFERED"} and more <= {"GLOO_SOCKET_IFNAME", "RES_OPTIONS"}
        # each has its own rendezvous
        own = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TOLD"}
        own |= {"TORCHELASTIC_ERROR_FILE"}
        assert {name: their[name] for name in set(their) & set(our) - own} == {
            name: our[name] for name in set(their) & set(our) - own
        }


@pytest.mark.parametrize(
    ("script", "ranks", "restarts", "codes"),
    [
        (FAILS_AT_FIRST, 2, 1, set()),
        (SAVES, 2, 0, {5}),
        (SAVES, 2, 1, {5}),
        (KILLED, 1, 0, {-15}),
        (MESSAGE, 1, 1, {1}),
    ],
    ids=["fails at first", "saves", "saves, with restarts", "killed", "message"],
)
def test_ranks_end_alike(tmp_path: Path, script: str, ranks: int, restarts: int, codes: set[int]) -> None:
    theirs, ours = with_torchrun(script, ranks, restarts, tmp_path), in_a_cell(script, ranks, restarts, tmp_path)
    assert ours == theirs
    assert ours.failed == codes
    assert len(ours.told) == ranks * (restarts + 1)
