"""The result of one check and its rendering as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from labkit.checks.expectations import WrongChunks
from labkit.clusters import Run
from labkit.lab_failed import LAB_FAILED, SHOW_IT

_MAX_LINES = 14
_MAX_CHARACTERS = 4000


@dataclass(frozen=True)
class CheckResult:
    """Result of one check."""

    title: str
    points: float
    earned: float
    expected: str = ""
    seen: str = ""
    look_at: str = ""
    parts: str = ""
    """Parts that are missing or too many in a wrong sum of a visible check, rank by rank."""
    stopped: str = ""
    """Kind of failure and its line, if a rank failed; without inputs."""
    why: str = ""
    """Explanation of such a failure: which rank waited for which, what ended a rank; without inputs."""
    todo: int = 0
    """Number of the TODO to look at: that of the line where a rank failed, else the last one that the check needs."""
    unwritten: bool = False
    """Whether it failed only because it called a gap of the template, at that line."""
    to_write: str = ""
    """Message for such a check: `TODO 2 in ring_reduce_scatter is not written yet`."""
    line: int = 0
    """Line of the exercise's cell at which a rank failed; 0 if unknown."""
    told: str = ""
    """The part of `seen` that a learner may read when the check is hidden; empty: all of it."""
    skipped: str = ""
    """Reason why it could not be judged on this cluster; it is then left out of the score."""
    seconds: float = 0.0
    """Wall-clock time, in seconds."""
    run: Run | None = field(default=None, repr=False, compare=False)
    """The run in which it failed, with trace and output. One of the passed checks keeps its run, too."""
    picture: WrongChunks | None = field(default=None, repr=False, compare=False)
    """Wrong chunks of each rank, and whose parts are in them, as far as known."""
    fault: str = ""
    """Traceback of an error of the check itself: for the instructor, never shown to learners."""
    of_the_machine: bool = False
    """Whether that error came from the grading machine, such as lack of memory: no verdict unless it repeats."""
    of_the_lab: bool = False
    """Whether that error is the lab's own: no verdict."""
    cause: str = ""
    """Title of an easier check that failed before, if that alone explains this failure."""
    retried: str = ""
    """Result of running it again, if the failure may have been chance; shown to learners."""

    @property
    def passed(self) -> bool:
        return not self.skipped and self.earned == self.points

    @property
    def counts(self) -> bool:
        """Whether the check was judged, so that its points count: the cluster has what it needs, and the lab works."""
        return not (self.skipped or self.of_the_machine or self.of_the_lab)

    def text(self) -> str:
        """Lines for a terminal; readable without colour."""
        if self.skipped:
            return f"skip       {self.title}\n           {self.skipped}"
        mark = "ok  " if self.passed else "TODO" if self.unwritten else "FAIL"
        lines = [f"{mark} {number(self.earned)}/{number(self.points)}".ljust(11) + self.title]
        if not self.counts:
            lines = [f"lab error  {self.title}"]
        for label, value in details(self):
            first, *rest = value.splitlines() or [""]
            lines += [f"           {label:<9} {first}", *(" " * 21 + line for line in rest)]
        if self.retried:
            lines.append(f"           {'retried':<9} {self.retried}")
        if self.picture is not None and len(self.picture.wrong) <= 16:
            lines += [" " * 11 + line for line in _grid(self.picture.wrong)]
        return "\n".join(lines)


def lab_failed(lost: CheckResult, kind: str, fault: str, of_the_machine: bool = False) -> CheckResult:
    """Return the result of a check that ended in an error of the lab, or of the machine that it runs on.

    What to look at in the submission is left out: nothing there is known to be wrong. kind: the error's type.
    """
    return replace(
        lost,
        seen=f"{LAB_FAILED} ({kind})",
        look_at=SHOW_IT,
        todo=0,
        fault=fault,
        of_the_machine=of_the_machine,
        of_the_lab=not of_the_machine,
    )


def details(result: CheckResult) -> list[tuple[str, str]]:
    """Details of a failed check as (label, text)."""
    if result.passed or result.skipped:
        return []
    if result.unwritten:
        place = result.stopped.partition(" at ")[2]
        return [("to write", f"{result.to_write}: {place}" if result.to_write and place else result.to_write or place)]
    lines = [("expected", result.expected), ("seen", _shortened(result.seen)), ("parts", result.parts)]
    if result.seen == result.stopped:  # else `seen` is the whole diagnosis, which includes the reason
        lines.append(("why", result.why))
    lines.append(("look at", result.look_at))
    if result.run is not None:
        # the learner's debugging output; ranks tend to print the same
        printed = dict.fromkeys(r.output.strip() for r in result.run.ranks if r.output.strip())
        lines.append(("printed", _shortened("\n".join(printed))))
    return [(label, value) for label, value in lines if value]


def _shortened(text: str) -> str:
    lines = text[:_MAX_CHARACTERS].splitlines()
    if len(lines) <= _MAX_LINES:
        return "\n".join(lines)
    return "\n".join([*lines[:_MAX_LINES], f"... {len(lines) - _MAX_LINES} more lines"])


def _grid(wrong: Sequence[Sequence[bool]]) -> list[str]:
    """Rows of ranks and columns of chunks; nothing if there is only one column."""
    chunks = len(wrong[0]) if wrong else 0
    if chunks < 2:
        return []
    head = "chunk    " + " ".join(f"{chunk:>2}" for chunk in range(chunks))
    marks = (" ".join(" x" if is_wrong else " ." for is_wrong in row) for row in wrong)
    rows = [f"rank {rank:>3} {row}" for rank, row in enumerate(marks)]
    return [head, *rows, "x: wrong"]


def number(value: float) -> str:
    """`2.5`, `3`."""
    return f"{value:g}"
