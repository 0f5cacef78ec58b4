"""A worker: judges one piece of work after the other, and stores each verdict at once.

It runs the grader's own code; learners' code runs in the sandboxes that it opens. Its socket carries lines of JSON:
work in, outcomes out.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch
from traitlets.config import Config

from autograder.batch.configured import configured_grader
from autograder.course_folder import Course
from autograder.intake import IntakeFailed
from autograder.intake.stamps import FORMAT
from autograder.judge import BrokenRubric
from autograder.measurable import remember
from autograder.sandbox import Sandbox, SandboxUnavailable
from autograder.sandbox.forkserver import close_all
from autograder.verdicts.grader import NotebookGrader
from autograder.verdicts.store import GradingTask
from labkit.checks import NoRubric
from labkit.transport import lines


def main(asked: dict[str, Any], own: list[int]) -> NoReturn:
    """Be a worker until its socket, `own[0]`, is closed.

    asked: `course`, its folder; `options` that override its settings; `unmeasurable`, what this machine cannot measure,
    if that is known.
    """
    code = 1
    try:
        torch.set_num_threads(1)  # there is a worker for each core: more threads would compete for it
        log = logging.Logger("autograder", logging.ERROR)
        log.addHandler(logging.StreamHandler())
        config = Course(Path(asked["course"]), Config(asked["options"])).config
        if asked["unmeasurable"] is not None:
            remember(Sandbox(config=config), asked["unmeasurable"])
        grader = configured_grader(config, log)
        connection = socket.socket(fileno=own[0])
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
    answer = {"key": stored.key, "seconds": stored.seconds, "fresh": judged.fresh, "handed_in": handed_in}
    return {**answer, "time_problem": intake.time_problem, "verdict": stored.verdict.to_json()}
