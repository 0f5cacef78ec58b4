"""`python -m autograder.batch.forkserver`: the workers' forkserver, a process with all imports done, and its workers.

Importing torch and nbgrader takes three seconds; done once, another worker, or a replacement for a dead one, takes a
hundredth of that. `labkit autograde` forks it from itself, which adds no import time. Workers run the grader's own
code; learners' code runs in the sandboxes that they open.

The control socket carries one message in for each requested worker, with the worker's own socket, and one message out
for each worker that has ended. A worker's socket carries lines of JSON: work in, outcomes out.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from traitlets.config import Config

from autograder.batch.configured import configured_grader
from autograder.course_folder import Course
from autograder.intake import IntakeFailed
from autograder.intake.stamps import FORMAT
from autograder.judge import BrokenRubric
from autograder.measurable import remember
from autograder.sandbox import Sandbox, SandboxUnavailable
from autograder.sandbox.forkserver import close_all, shared
from autograder.verdicts.grader import NotebookGrader
from autograder.verdicts.store import GradingTask
from labkit.checks import NoRubric
from labkit.linux.prctl import die_with_parent
from labkit.transport import datagrams, lines

PATIENCE = 10.0
"""Seconds granted to idle workers to close their sandboxes and end."""


def main(parent: int, descriptor: int, clock: Callable[[], float] = time.monotonic) -> None:
    """Fork workers on request until the parent closes the control socket or ends. clock: that of `PATIENCE`."""
    die_with_parent(parent)
    control = socket.socket(fileno=descriptor)
    ended, ended_write = os.pipe()
    os.set_blocking(ended_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ended_write, warn_on_full_buffer=False)
    workers: dict[int, int] = {}
    """Process ids by worker number."""
    while True:
        ready, _, _ = select.select([control.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            for number, code in _reaped(workers):
                datagrams.send(control, {"worker": number, "exit": code})
        if control.fileno() in ready:
            asked, descriptors = datagrams.receive(control, 1)
            if asked is None:
                break
            if "kill" in asked:
                if asked["kill"] in workers:
                    os.kill(workers[asked["kill"]], signal.SIGKILL)
                continue
            with socket.socket(fileno=descriptors[0]) as connection:
                forkserver = os.getpid()
                # one import of torch for the sandboxes of all workers
                with shared():
                    pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    control.close()
                    _work(forkserver, connection, asked)
            workers[asked["worker"]] = pid
    began = clock()
    while workers and clock() - began < PATIENCE:
        _reaped(workers)
        time.sleep(0.01)
    for pid in workers.values():
        os.kill(pid, signal.SIGKILL)


def _reaped(workers: dict[int, int]) -> list[tuple[int, int]]:
    """Remove workers that have ended from `workers`; return them with their exit codes."""
    ended = []
    for number, pid in list(workers.items()):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended.append((number, os.waitstatus_to_exitcode(status)))
            del workers[number]
    return ended


def _work(forkserver: int, connection: socket.socket, asked: dict[str, Any]) -> None:
    """Run a worker; does not return."""
    code = 1
    try:
        die_with_parent(forkserver)
        torch.set_num_threads(1)  # there is a worker for each core: more threads would compete for it
        log = logging.Logger("autograder", logging.ERROR)
        log.addHandler(logging.StreamHandler())
        config = Course(Path(asked["course"]), Config(asked["options"])).config
        if asked["unmeasurable"] is not None:
            remember(Sandbox(config=config), asked["unmeasurable"])
        grader = configured_grader(config, log)
        with connection.makefile("r", encoding="utf-8") as tasks:
            for line in tasks:
                task = json.loads(line)
                connection.sendall(lines.encode(_outcome(grader, task)).encode())
        close_all()
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _outcome(grader: NotebookGrader, task: dict[str, Any]) -> dict[str, Any]:
    work = GradingTask(*task["work"])
    try:
        intake = grader.receive(work.student, work.assignment)
        judged = grader.judge(work, intake.notebooks[work.notebook], task["again"])
    except Exception as error:
        known = isinstance(error, BrokenRubric | NoRubric | SandboxUnavailable | IntakeFailed)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        return {"error": reason, "hopeless": isinstance(error, BrokenRubric | NoRubric)}
    stored = judged.stored
    handed_in = intake.handed_in.strftime(FORMAT) if intake.handed_in else ""
    told = {"key": stored.key, "seconds": stored.seconds, "fresh": judged.fresh, "handed_in": handed_in}
    return {**told, "verdict": stored.verdict.to_json()}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
