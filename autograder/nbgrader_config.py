"""The course, as nbgrader sees it.

    cd autograder && nbgrader generate_assignment phase3_multi_node      # this file is found in the working directory
    nbgrader autograde phase3_multi_node --config autograder/nbgrader_config.py      # from anywhere else

`notebooks/` of the tree is the source. All that grading makes (release, submitted, autograded, feedback, gradebook.db) lies in
`course/` of the tree, or in the folder that `LABKIT_COURSE` or `--course-dir` names.
"""

import os
import sys
from pathlib import Path

from labkit import exercises

c = get_config()  # type: ignore[name-defined]  # noqa: F821  nbgrader defines it

_course = Path(os.environ.get("LABKIT_COURSE") or exercises.root() / "course").resolve()
_course.mkdir(parents=True, exist_ok=True)

c.CourseDirectory.course_id = "distributed-training"
c.CourseDirectory.root = str(_course)
# relative: nbgrader reads the parts of this path as a regular expression
c.CourseDirectory.source_directory = os.path.relpath(exercises.root() / "notebooks", _course)

# What nbgrader would execute, the judge scores instead. A submission is rebuilt upon the released notebook when it is read,
# so the stock sanitizers have nothing left to do.
c.Autograde.exporter_class = "autograder.intake.SubmissionExporter"
c.Autograde.sanitize_preprocessors = ["nbgrader.preprocessors.CheckCellMetadata"]
c.Autograde.autograde_preprocessors = [
    "autograder.judging.Judge",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]
