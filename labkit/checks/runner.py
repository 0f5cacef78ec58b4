"""Run a rubric on a submission: each check separately, with partial credit by check."""

from __future__ import annotations

import re
import secrets
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace

from labkit.checks.attribution import is_of_the_lab
from labkit.checks.check_result import CheckResult, lab_failed
from labkit.checks.draw import Draw
from labkit.checks.expectations import CheckFailed, NotMeasurable
from labkit.checks.keeping import kept
from labkit.checks.patience import NOT_RUN
from labkit.checks.provenance import EXPLANATION
from labkit.checks.ranks import CHECK_PHASE, SCENARIO_PHASE, CannotJudge, ProcessRun, Ranks, Submission
from labkit.checks.report import Report
from labkit.checks.rubric import Check, Rubric
from labkit.checks.stopping import what_stopped
from labkit.clusters import InvalidJob, RankError, RankFailed, Run
from labkit.clusters.forkserver.client import ForkServerDied
from labkit.trace import Kind

Progress = Callable[[Check, CheckResult | None], None]
"""Callback, called before each check with None and after it with the result."""


def run_checks(
    rubric: Rubric,
    submission: Submission,
    ranks: Ranks,
    *,
    seed: int | None = None,
    progress: Progress | None = None,
    title: str = "",
) -> Report:
    """Judge `submission` on the clusters that `ranks` makes.

    World sizes, shapes and contents are drawn from `seed`; None picks a new one, which the report contains.
    A check that fails, hangs or breaks costs only its own points. Each failed check keeps its run, without values, and
    so does the one passed check whose run shows most. Raises only errors that are not the submission's: `InvalidJob`,
    `CannotJudge`, `KeyboardInterrupt`.
    """
    seed = 1 + secrets.randbelow(2**31) if seed is None else seed
    results: list[CheckResult] = []
    telling: Run | None = None
    first_seen: dict[tuple[str, str], CheckResult] = {}
    failed: dict[str, str] = {}
    for check in rubric.checks:
        if progress:
            progress(check, None)
        measuring = ranks.measuring(check.needs)
        began = time.perf_counter()
        result = _judge(check, submission, measuring, Draw(seed, check.name), failed)
        judged = result.counts and not result.seen.startswith(NOT_RUN)
        if judged and not result.passed:
            failed[check.name] = check.title
        if result.parts and not any(earlier.parts for earlier in results):
            result = replace(result, parts=f"{EXPLANATION}\n{result.parts}")
        if result.stopped:
            # one line of a given function may fail several checks, for different reasons
            earlier = first_seen.setdefault((result.stopped, result.why), result)
            if earlier is not result:
                seen = f"{result.stopped.replace(f'{rubric.exercise.phase}/', '')}, as above"
                result = replace(result, expected="", seen=seen, told=seen, why="", line=0)
        run = measuring.last_run if not result.skipped else None
        if result.passed:
            if _shows(run) > _shows(telling):
                telling = None if run is None else kept(run)
                results = [replace(earlier, run=None) if earlier.passed else earlier for earlier in results]
            else:
                run = None
        result = replace(result, seconds=time.perf_counter() - began, run=None if run is None else kept(run))
        results.append(result)
        if progress:
            progress(check, result)
    return Report(rubric.exercise.name, results, seed, title)


def _judge(check: Check, submission: Submission, ranks: Ranks, draw: Draw, failed: Mapping[str, str]) -> CheckResult:
    """failed: titles of the checks that have failed before, by name."""
    lost = CheckResult(check.title, check.points, earned=0.0, look_at=check.look_at, todo=check.todo)
    try:
        check(submission=submission, ranks=ranks, draw=draw)
    except CheckFailed as failure:
        cause = next((failed[name] for name in failure.easier if name in failed), "")
        look_at = f"“{cause}” first: it fails, too, and this needs it" if cause else failure.look_at or check.look_at
        failed_check = replace(lost, expected=failure.expected, seen=failure.seen, told=failure.told, look_at=look_at)
        return replace(failed_check, cause=cause, picture=failure.picture, parts=failure.parts)
    except RankFailed as failure:
        stop = what_stopped(failure.run, submission)
        if stop.of_the_lab:
            # a rank may have written it, and instructors read it in a terminal
            fault = re.sub(r"[^\n -~]", "?", failure.run.diagnosis())
            return lab_failed(lost, stop.text, fault=fault)
        lost = replace(lost, stopped=stop.text, why=stop.why, line=stop.line, todo=stop.todo.number or check.todo)
        if stop.unwritten:
            lost = replace(lost, unwritten=True, to_write=f"{stop.todo.text} is not written yet")
        seen = _without_lines_of_the_check(failure.run).diagnosis()
        return replace(lost, expected="every rank to return", seen=seen, told=stop.text, look_at="")
    except NotMeasurable as reason:
        return replace(lost, skipped=str(reason))
    except (InvalidJob, CannotJudge):
        raise
    except ForkServerDied as death:  # of ranks that the check has started itself
        raise CannotJudge(str(death)) from None
    except (OSError, MemoryError) as error:
        return lab_failed(lost, type(error).__name__, fault=traceback.format_exc(), of_the_machine=True)
    except Exception as error:
        if is_of_the_lab(error):
            return lab_failed(lost, type(error).__name__, fault=traceback.format_exc())
        # a value that the check does not handle: its author's fault, and no reason to stop
        seen = f"a result that the check could not read ({type(error).__name__})"
        return replace(lost, seen=seen, fault=traceback.format_exc())
    return replace(lost, earned=check.points)


def _without_lines_of_the_check(run: Run) -> Run:
    """Return `run` with errors that arose in a function of the check, such as `None.rank`, reworded for learners."""
    ranks = [replace(rank, error=_for_learners(rank.error)) if rank.error else rank for rank in run.ranks]
    return replace(run, ranks=ranks)


def _for_learners(error: RankError) -> RankError:
    if error.frames and not error.frames[-1][0].startswith(f"{CHECK_PHASE}/"):
        return error
    lines = [error.frames[-1][-1]] if error.frames else _SCENARIO_LINE.findall(error.traceback)
    if not lines:
        return error
    message = f"{error.message}\n    where the check uses your module: {lines[-1]}"
    return replace(error, message=message, frames=(), locals=())


_SCENARIO_LINE = re.compile(rf'^  File "{SCENARIO_PHASE}/.*\n    (.+)$', re.MULTILINE)
"""In a traceback, with the text of the line. None of these is among an error's frames."""


_MOST_MESSAGES = 150
"""Maximum number of messages in a clear picture."""
_ENOUGH_RANKS = 8


def _shows(run: Run | None) -> tuple[bool, int, float]:
    """Sort key for how much a picture of `run` shows: messages, but not too many; ranks; time."""
    if run is None or isinstance(run, ProcessRun):  # the trace of real processes is only the ranks' claim
        return False, 0, 0.0
    sent = len(run.trace.of(kind=Kind.SEND))
    return 0 < sent <= _MOST_MESSAGES, min(run.trace.world_size, _ENOUGH_RANKS) if sent else 0, run.trace.seconds
