"""The course, as nbgrader sees it.

    cd autograder           # nbgrader reads this file from its working directory
    nbgrader generate_assignment phase3_multi_node
    nbgrader autograde phase3_multi_node
    nbgrader generate_feedback phase3_multi_node
    nbgrader export --to grades.csv

The source is `notebooks/` of the tree, together with that of an instructor's own exercises. Everything that grading
produces (release, submitted, autograded, feedback, gradebook.db) goes to `course/` of the tree, or to the folder given
by `LABKIT_COURSE` or `--course-dir`.
"""

import os
import sys
import warnings
from pathlib import Path

from sqlalchemy.exc import SAWarning

from autograder import course_paths, gradebook_lock, instructors_input, release, settings_file
from autograder.feedback import generate
from autograder.intake import autograde
from autograder.source_notebooks import source_folder
from labkit import catalogue

c = get_config()  # type: ignore[name-defined]  # noqa: F821  nbgrader defines it

# nbgrader starts `alembic` by name when it makes a gradebook: find it even if the environment is not activated
_commands = str(Path(sys.executable).parent)
if _commands not in os.environ["PATH"].split(os.pathsep):
    os.environ["PATH"] = os.pathsep.join([_commands, os.environ["PATH"]])

# about the order in which nbgrader inserts rows; instructors need not act
warnings.filterwarnings("ignore", category=SAWarning, module="nbgrader")

_course = Path(os.environ.get("LABKIT_COURSE") or catalogue.root() / "course").resolve()
course_paths.require_usable(_course)
_course.mkdir(parents=True, exist_ok=True)

# `labkit hub` passes the name that its settings give the course
c.CourseDirectory.course_id = os.environ.get("LABKIT_COURSE_NAME") or "distributed-training"
c.CourseDirectory.root = str(_course)
c.CourseDirectory.source_directory = str(source_folder(_course))

# Refuses submissions that are not their author's. Where all learners share one system user, authorship cannot be
# checked: then set `c.ExchangeCollect.check_owner = False`.
c.ExchangeFactory.collect = "autograder.intake.collect.ExchangeCollect"

# A release is made beside the old one, which it replaces as a whole, also when there are submissions.
release.install()

# Intake reads submissions as data before nbgrader's converter sees them, and rebuilds them on the released notebook, so
# the stock sanitizers have nothing left to do. The judge scores what nbgrader would execute.
autograde.install()
course_paths.install()
gradebook_lock.install()
instructors_input.install()
settings_file.install()
c.Autograde.exporter_class = "autograder.intake.autograde.ReceivedExporter"
c.Autograde.sanitize_preprocessors = ["nbgrader.preprocessors.CheckCellMetadata"]
c.Autograde.autograde_preprocessors = [
    "autograder.judge_cells.JudgeCells",
    "nbgrader.preprocessors.SaveAutoGrades",
    "autograder.marks.late.LatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]

# Late submissions cost nothing unless `c.LateRule.percent_per_day` is set. Settings of one course belong in
# course/nbgrader_config.py; see docs/grading.md
c.AssignLatePenalties.plugin_class = "autograder.marks.late.LateRule"

# The lab's own feedback pages, see autograder/feedback/page.py
generate.install()
c.GenerateFeedback.exporter_class = "autograder.feedback.page.FeedbackExporter"
c.GenerateFeedback.preprocessors = ["nbgrader.preprocessors.GetGrades"]

# In the formgrader, HTML in learners' answers is text
c.HTMLExporter.filters = {"markdown2html": "autograder.feedback.markdown.markdown2html"}
