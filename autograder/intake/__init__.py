"""Intake: a submission is data. It is rebuilt on the released notebook, with the learner's solution cells alone.

    release = read_release(course / "release" / assignment)
    intake = receive(course / "submitted" / student / assignment, release)
    intake.notebooks["ring_allreduce"]    # the released notebook with the learner's solution cells in it

Whatever the learner handed in, each released notebook comes out once, valid, with what was odd about its file in
`metadata.labkit.intake`; the same submission and release give the same notebooks. What fails on our side, such as a
missing release or a full disk, raises `IntakeFailed`: that is no submission's fault and never a score.

`nbgrader autograde` itself walks and copies a submission's folder before it reads a notebook, and follows links. So
`AutogradeReceived` takes the place of its converter and gives it `received/STUDENT/ASSIGNMENT`, which holds what
`receive` returned and nothing else. `ExchangeCollect` takes the place of nbgrader's: it refuses a submission whose
files are not its author's.
"""

from autograder.intake.limits import IntakeFailed, Limits
from autograder.intake.reading import Submitted, SubmittedCell, read_cells
from autograder.intake.rebuild import rebuild
from autograder.intake.receive import Intake, Release, read_release, receive

__all__ = [
    "Intake",
    "IntakeFailed",
    "Limits",
    "Release",
    "Submitted",
    "SubmittedCell",
    "read_cells",
    "read_release",
    "rebuild",
    "receive",
]
