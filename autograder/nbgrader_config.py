"""The course, as nbgrader sees it.

    cd autograder           # nbgrader reads this file where it is started
    nbgrader generate_assignment phase3_multi_node
    nbgrader autograde phase3_multi_node
    nbgrader generate_feedback phase3_multi_node
    nbgrader export --to grades.csv

`notebooks/` of the tree is the source. All that grading makes (release, submitted, autograded, feedback, gradebook.db)
lies in `course/` of the tree, or in the folder that `LABKIT_COURSE` or `--course-dir` names.
"""

import os
import sys
import warnings
from pathlib import Path

from sqlalchemy.exc import SAWarning

from autograder.intake.autograde import install
from labkit import exercises

c = get_config()  # type: ignore[name-defined]  # noqa: F821  nbgrader defines it

# nbgrader starts `alembic` by name when it makes a gradebook: found even when the environment is not activated
_commands = str(Path(sys.executable).parent)
if _commands not in os.environ["PATH"].split(os.pathsep):
    os.environ["PATH"] = os.pathsep.join([_commands, os.environ["PATH"]])

# of the order in which nbgrader puts rows together; nothing for an instructor to do
warnings.filterwarnings("ignore", category=SAWarning, module="nbgrader")

_course = Path(os.environ.get("LABKIT_COURSE") or exercises.root() / "course").resolve()
_course.mkdir(parents=True, exist_ok=True)

c.CourseDirectory.course_id = "distributed-training"
c.CourseDirectory.root = str(_course)
c.CourseDirectory.source_directory = str(exercises.root().resolve() / "notebooks")

# Refuses submissions that are not their author's. Where all learners are one user of the system, nothing can tell: then
# `c.ExchangeCollect.check_owner = False`.
c.ExchangeFactory.collect = "autograder.intake.collect.ExchangeCollect"

# Submissions are taken in as data before nbgrader's converter looks at them, and rebuilt on the released notebook; so
# the stock sanitizers have nothing left to do. What nbgrader would execute, the judge scores instead.
install()
c.Autograde.exporter_class = "autograder.intake.autograde.ReceivedExporter"
c.Autograde.sanitize_preprocessors = ["nbgrader.preprocessors.CheckCellMetadata"]
c.Autograde.autograde_preprocessors = [
    "autograder.judge_cells.JudgeCells",
    "nbgrader.preprocessors.SaveAutoGrades",
    "autograder.marks.late.LatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]

# What handing in late costs: nothing, unless `c.LateRule.percent_per_day` says otherwise. Settings of one course stand
# best in course/nbgrader_config.py; see docs/grading.md
c.AssignLatePenalties.plugin_class = "autograder.marks.late.LateRule"

# Feedback pages are our own, see autograder/feedback/page.py
c.GenerateFeedback.exporter_class = "autograder.feedback.page.FeedbackExporter"
c.GenerateFeedback.preprocessors = ["nbgrader.preprocessors.GetGrades"]
