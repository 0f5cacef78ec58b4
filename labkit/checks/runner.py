"""Runs a rubric on a submission: each check for itself, partial credit by check."""

from __future__ import annotations

import builtins
import secrets
import time
import traceback
from collections.abc import Callable
from dataclasses import replace

from labkit.checks.draw import Draw
from labkit.checks.expectations import CheckFailed, NotMeasurable
from labkit.checks.ranks import Ranks, Submission
from labkit.checks.report import CheckResult, Report
from labkit.checks.rubric import Check, Rubric
from labkit.clusters import InvalidJob, RankFailed, Run

Progress = Callable[[Check, CheckResult | None], None]
"""Called before each check with None, and after it with its result."""


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

    World sizes, shapes and contents are drawn from `seed`; None takes a new one, which stands in the report.
    A check that fails, hangs or breaks costs its own points and no others. Raises only what is nobody's answer:
    `InvalidJob`, `KeyboardInterrupt`.
    """
    seed = 1 + secrets.randbelow(2**31) if seed is None else seed
    results = []
    first_seen: dict[str, CheckResult] = {}
    for check in rubric.checks:
        if progress:
            progress(check, None)
        ranks.last_run = None
        began = time.perf_counter()
        result = _judge(check, submission, ranks, Draw(seed, check.name))
        if result.stopped:
            earlier = first_seen.setdefault(result.stopped, result)
            if earlier is not result:
                result = replace(result, expected="", seen=f"{result.stopped}, as above")
        failed_in = ranks.last_run if result.earned < result.points and not result.skipped else None
        result = replace(result, seconds=time.perf_counter() - began, run=failed_in)
        results.append(result)
        if progress:
            progress(check, result)
    return Report(rubric.exercise.name, results, seed, title)


def _judge(check: Check, submission: Submission, ranks: Ranks, draw: Draw) -> CheckResult:
    lost = CheckResult(check.title, check.points, earned=0.0, look_at=check.look_at)
    try:
        check(submission=submission, ranks=ranks, draw=draw)
    except CheckFailed as failure:
        look_at = failure.look_at or check.look_at
        return replace(lost, expected=failure.expected, seen=failure.seen, look_at=look_at, picture=failure.picture)
    except RankFailed as failure:
        stopped = _what_stopped(failure.run)
        return replace(lost, expected="every rank to return", seen=failure.run.diagnosis(), stopped=stopped, look_at="")
    except NotMeasurable as reason:
        return replace(lost, skipped=str(reason))
    except InvalidJob:
        raise
    except Exception as error:  # a value that the check did not foresee: its author's fault, and no reason to stop
        seen = f"a result that the check could not read ({type(error).__name__})"
        return replace(lost, seen=seen, fault=traceback.format_exc())
    return replace(lost, earned=check.points)


def _what_stopped(run: Run) -> str:
    """`DeadlockError at ring_allreduce.py, line 12`; nothing that a learner's exception could carry to them."""
    error = run.first_failure.error if run.first_failure else None
    where = f" at {error.where}" if error and error.where else ""
    if run.stopped:
        # without the number of seconds, which differs from check to check
        return run.stopped.split(" after ")[0] + where
    if error is None:
        return "a rank that ended early"
    known = hasattr(builtins, error.type) or error.type in ("DeadlockError", "MismatchError")
    return (error.type if known else "an exception") + where
