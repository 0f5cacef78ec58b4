"""`python -m autograder.batch.nursery`: a process that has everything imported, and the workers that it forks.

Importing torch and nbgrader takes three seconds; done once, a further worker, or one in the place of a dead one, costs
a hundredth. `labkit autograde` forks it from itself, so there it costs nothing more. What workers run is the grader's
own code: learners' code runs in the sandboxes that they open.

On the control socket comes one message for each worker that is wanted, with the worker's own socket; back goes one
message for each that has ended. On a worker's socket go lines of JSON: a piece of work in, its outcome out.
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
from pathlib import Path
from typing import Any

from traitlets.config import Config

from autograder.batch.configured import configured_desk
from autograder.course import Course
from autograder.desk.store import Work
from autograder.desk.work import Desk
from autograder.intake import IntakeFailed
from autograder.intake.stamps import FORMAT
from autograder.judge import BrokenRubric
from autograder.measurable import remember
from autograder.sandbox import Sandbox, SandboxUnavailable
from autograder.sandbox.template import close_all, shared
from labkit.checks import NoRubric
from labkit.clusters.warm.processes import die_with_parent

MAX_MESSAGE = 1 << 16

PATIENCE = 10.0
"""Seconds in which workers that have nothing more to do close their sandboxes and end."""


def main(parent: int, descriptor: int) -> None:
    """Fork workers as they are asked for, until the parent closes the control socket or ends."""
    die_with_parent(parent)
    control = socket.socket(fileno=descriptor)
    ended, ended_write = os.pipe()
    os.set_blocking(ended_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ended_write, warn_on_full_buffer=False)
    workers: dict[int, int] = {}
    """Process by number of the worker."""
    while True:
        ready, _, _ = select.select([control.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            for number, code in _reaped(workers):
                control.send(json.dumps({"worker": number, "exit": code}).encode())
        if control.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE, 1)
            if not message:
                break
            asked = json.loads(message)
            if "kill" in asked:
                if asked["kill"] in workers:
                    os.kill(workers[asked["kill"]], signal.SIGKILL)
                continue
            with socket.socket(fileno=descriptors[0]) as connection:
                nursery = os.getpid()
                # one import of torch for the sandboxes of all workers
                with shared():
                    pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    control.close()
                    _work(nursery, connection, asked)
            workers[asked["worker"]] = pid
    began = time.monotonic()
    while workers and time.monotonic() - began < PATIENCE:
        _reaped(workers)
        time.sleep(0.01)
    for pid in workers.values():
        os.kill(pid, signal.SIGKILL)


def _reaped(workers: dict[int, int]) -> list[tuple[int, int]]:
    """Workers that have ended, with their exit codes; they are taken out of `workers`."""
    ended = []
    for number, pid in list(workers.items()):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended.append((number, os.waitstatus_to_exitcode(status)))
            del workers[number]
    return ended


def _work(nursery: int, connection: socket.socket, asked: dict[str, Any]) -> None:
    """A worker's life; does not return."""
    code = 1
    try:
        die_with_parent(nursery)
        log = logging.Logger("autograder", logging.ERROR)
        log.addHandler(logging.StreamHandler())
        config = Course(Path(asked["course"]), Config(asked["options"])).config
        if asked["unmeasurable"] is not None:
            remember(Sandbox(config=config), asked["unmeasurable"])
        desk = configured_desk(config, log)
        with connection.makefile("r", encoding="utf-8") as tasks:
            for line in tasks:
                task = json.loads(line)
                connection.sendall(json.dumps(_outcome(desk, task)).encode() + b"\n")
        close_all()
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _outcome(desk: Desk, task: dict[str, Any]) -> dict[str, Any]:
    work = Work(*task["work"])
    try:
        intake = desk.receive(work.student, work.assignment)
        judged = desk.judge(work, intake.notebooks[work.notebook], task["again"])
    except Exception as error:
        known = isinstance(error, BrokenRubric | NoRubric | SandboxUnavailable | IntakeFailed)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        return {"error": reason, "hopeless": isinstance(error, BrokenRubric | NoRubric)}
    kept = judged.kept
    handed_in = intake.handed_in.strftime(FORMAT) if intake.handed_in else ""
    told = {"key": kept.key, "seconds": kept.seconds, "fresh": judged.fresh, "handed_in": handed_in}
    return {**told, "verdict": kept.verdict.to_json()}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
