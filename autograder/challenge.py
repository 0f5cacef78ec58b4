"""`labkit judge-challenge`: score an entry of a challenge in the sandbox, on instances that learners do not know."""

from __future__ import annotations

import math
import sys
import threading
from pathlib import Path

from autograder.sandbox import Sandbox
from autograder.submission_sandbox import SubmissionSandbox
from labkit.challenges.challenge import BOUND, Outcome, Row, find, table
from labkit.checks import CannotJudge, CheckFailed
from labkit.command_line.commands import CommandError, require_file
from labkit.text_files import UnreadableText, read_text

LEAST_SEED = 1_000_000_000
"""Smallest seed accepted: an entry can try a thousand seeds a second, and compare their instances with its own."""


LONGEST_SECONDS = 1200.0
"""Time for all instances of an entry by this machine's clock. Limits of the sandbox leave out what other programs use,
and an entry can keep those busy, such as the judge by what it prints."""


def judged(
    name: str, source: str, entry: str, seed: int | None, sandbox: Sandbox, longest_seconds: float = LONGEST_SECONDS
) -> list[Outcome]:
    """Score the text of an entry in a sandbox of its own, on fresh ranks for each instance.

    seed: None for the published instances. longest_seconds: for all of them, by this machine's clock. Raises ValueError
    for an unknown challenge, `CannotJudge` if there is no sandbox.
    """
    race = find(name).load()
    ranks = SubmissionSandbox(sandbox)
    ranks.keeps_ranks = False
    why = (
        f"judging it took longer than {longest_seconds:g} s by the clock. "
        "If it neither prints much nor waits, the machine was busy: send it again"
    )
    limit = threading.Timer(longest_seconds, ranks.end, [why])
    limit.daemon = True
    limit.start()
    try:
        return list(race.measure(source, entry, lambda text: None, seed, ranks.virtual))
    except CheckFailed as ended:  # the entry has made the whole sandbox end
        return [Outcome("the sandbox has ended", math.nan, str(ended))]
    finally:
        limit.cancel()
        ranks.close()


def main(name: str, files: list[Path], seed: int) -> int:
    """Print a table of these entries. Exit status 1: one of them does not count."""
    try:
        challenge = find(name)
    except ValueError as error:
        raise CommandError(str(error)) from None
    for file in files:
        require_file(file)
    if seed < LEAST_SEED:
        raise CommandError(f"--seed must be at least {LEAST_SEED}: an entry could try all smaller ones, got {seed}")
    rows, faults = [Row(BOUND, challenge.load().bounds(seed))], 0
    for file in files:
        print(f"judging: {file}", file=sys.stderr)
        try:
            outcomes = judged(name, read_text(file), file.stem, seed, Sandbox())
        except UnreadableText as problem:
            raise CommandError(f"{file}: {problem}") from None
        except CannotJudge as error:
            raise CommandError(str(error)) from None
        if any(math.isnan(outcome.value) for outcome in outcomes):
            faults += 1
            print(f"{file}: does not count: {outcomes[-1].instance}\n{outcomes[-1].fault}\n")
        else:
            rows.append(Row(str(file), {outcome.instance: outcome.value for outcome in outcomes}))
    print("\n".join(table(challenge, rows)))
    return int(faults > 0)
