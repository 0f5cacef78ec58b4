"""Intake: a submission is data. Only the learner's solution cells are kept, inserted into the released notebook.

    release = read_release(course / "release" / assignment)
    intake = receive(course / "submitted" / student / assignment, release)
    intake.notebooks["ring_allreduce"]    # the released notebook with the learner's solution cells in it

Whatever was submitted, each released notebook is returned once, valid, with oddities of its file in
`metadata.labkit.intake`; the same submission and release give the same notebooks. Infrastructure failures, such as a
missing release or a full disk, raise `IntakeFailed`: they are not the submission's fault and never a score.

`nbgrader autograde` itself walks and copies a submission's folder before it reads a notebook, and follows links. So
`AutogradeReceived` replaces its converter and gives it `received/STUDENT/ASSIGNMENT`, which holds only what `receive`
returned. `ExchangeCollect` replaces nbgrader's: it refuses a submission whose files are not its author's.
"""

from autograder.intake.limits import IntakeFailed, Limits
from autograder.intake.reading import SubmittedCell, SubmittedCells, read_cells
from autograder.intake.rebuild import rebuild
from autograder.intake.receive import Intake, Release, read_release, receive

__all__ = [
    "Intake",
    "IntakeFailed",
    "Limits",
    "Release",
    "SubmittedCell",
    "SubmittedCells",
    "read_cells",
    "read_release",
    "rebuild",
    "receive",
]
