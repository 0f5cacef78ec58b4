"""Whose fault it is that a check ends in an error that it does not expect: the submission's, or the lab's.

A check reads what a submission's ranks returned, and code of the course is given it, too: if that cannot be read, the
submission has returned something else than it should. The lab is at fault for names and modules that do not exist, and
for errors while it runs ranks, as long as no line of the submission or of the check was executed on them.
"""

from __future__ import annotations

import re
import traceback

from labkit.clusters.rank_result import RankError

_WRITTEN_WRONG = (NameError, ImportError, SyntaxError)
"""Errors that no value causes: all code that runs beside a check is the lab's."""
_BUGS = (
    *("AssertionError", "AttributeError", "ImportError", "IndexError", "KeyError", "ModuleNotFoundError", "NameError"),
    *("RecursionError", "TypeError", "UnboundLocalError", "UnicodeDecodeError", "ValueError", "ZeroDivisionError"),
)
"""Errors of a rank by which the lab tells nothing to a submission; it has classes of its own for that."""
_RUNS_RANKS = "labkit.checks.ranks"
_READS_VALUES = ("labkit.course.", "labkit.transport.", "autograder.course.", "autograder.rubric_support.")
_PLACE = re.compile(r'^  File "([^"\n]+)", line ', re.MULTILINE)
_OF_THE_LAB = re.compile(r".*/labkit/(?!course/|clusters/program\.py)[^<>]*\.py")
"""The lab's own code on a rank, but for the module that looks the submission's function up and calls it: it fails there
if the function is not there, is none, or takes other arguments."""


def is_of_the_lab(error: BaseException) -> bool:
    """Return whether an error that a check raised in its own process is the lab's."""
    if isinstance(error, _WRITTEN_WRONG):
        return True
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    of_lab = [name for name in modules if name.startswith(("labkit.", "autograder.", "rubric of "))]
    if not of_lab or of_lab[-1].startswith((*_READS_VALUES, "rubric of ")):
        return False
    after_the_check = of_lab[max((i for i, name in enumerate(of_lab) if name.startswith("rubric of ")), default=0) :]
    return _RUNS_RANKS in after_the_check


def is_of_the_lab_on_a_rank(error: RankError) -> bool:
    """Return whether a rank failed in the lab's code before or after all code of the submission and of the check.

    A submission can forge it, and gains nothing: there are no marks as long as the lab fails.
    """
    places = _PLACE.findall(error.traceback)
    if error.frames or error.type not in _BUGS or not places:
        return False
    return bool(_OF_THE_LAB.fullmatch(places[-1])) and not any(place.startswith("<") for place in places)
