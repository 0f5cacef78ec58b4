"""Judging as nbgrader's converter and preprocessor do it, so that verdicts are the same."""

from __future__ import annotations

import logging

from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config

from autograder.desk.work import Desk
from autograder.intake import Limits
from autograder.intake.autograde import AutogradeReceived
from autograder.judge_cells import JudgeCells
from autograder.sandbox import Sandbox


def configured_desk(config: Config, log: logging.Logger) -> Desk:
    """A desk with the settings of a course."""
    coursedir, sandbox = CourseDirectory(config=config, log=log), Sandbox(config=config, log=log)
    limits = Limits(notebook_bytes=AutogradeReceived(coursedir=coursedir, config=config).max_notebook_bytes)
    return Desk(coursedir, limits, sandbox, JudgeCells(config=config).timeout, log)
