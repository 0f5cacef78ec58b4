"""Judging configured as in nbgrader's converter and preprocessor, so that verdicts are the same."""

from __future__ import annotations

import logging

from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config

from autograder.intake import Limits
from autograder.intake.autograde import AutogradeReceived
from autograder.judge_cells import JudgeCells
from autograder.sandbox import Sandbox
from autograder.verdicts.grader import NotebookGrader


def configured_grader(config: Config, log: logging.Logger) -> NotebookGrader:
    """Return the verdict service with the settings of a course."""
    coursedir, sandbox = CourseDirectory(config=config, log=log), Sandbox(config=config, log=log)
    limits = Limits(notebook_bytes=AutogradeReceived(coursedir=coursedir, config=config).max_notebook_bytes)
    return NotebookGrader(coursedir, limits, sandbox, JudgeCells(config=config).timeout, log)
