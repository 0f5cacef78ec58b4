"""`tests/last_pass.json`: the last commit that `./lab test` passed on, with what that run measured.

Only such a run writes it. The merge tier begins with what has changed since that commit, the quick tier leaves out the
tests that were slow in it, and shards are cut by its seconds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from outcome_log import Outcome

NAME = "tests/last_pass.json"
SLOW_SECONDS = 0.5
"""Tests that took longer are listed one by one."""


@dataclass(frozen=True)
class LastPass:
    """Report of a run that passed."""

    commit: str = ""
    minutes: float = 0.0
    workers: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """Tests by outcome: `passed`, `skipped`."""
    second_tries: list[str] = field(default_factory=list)
    """Node ids of tests that passed only at their second try."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of each module of tests and of each notebook."""
    slow: dict[str, float] = field(default_factory=dict)
    """Seconds of each test that took longer than `SLOW_SECONDS`."""

    def save(self, root: Path) -> None:
        """Write the file, a value on each line, so that git shows what differs."""
        (root / NAME).write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n")


def load(root: Path) -> LastPass:
    """Read the file; an empty report where there is none."""
    path = root / NAME
    return LastPass(**json.loads(path.read_text())) if path.exists() else LastPass()


def report(
    commit: str, minutes: float, workers: int, outcomes: Iterable[Outcome], second_tries: Iterable[str]
) -> LastPass:
    """Sum up a run that passed."""
    modules: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    skipped: set[str] = set()
    for one in outcomes:
        modules[one.test.partition("::")[0]] += one.seconds
        tests[one.test] += one.seconds
        if one.outcome == "skipped":
            skipped.add(one.test)
    slow = {test: round(seconds, 1) for test, seconds in tests.items() if seconds > SLOW_SECONDS}
    return LastPass(
        commit=commit,
        minutes=round(minutes, 1),
        workers=workers,
        counts={"passed": len(tests) - len(skipped), "skipped": len(skipped)},
        second_tries=sorted(second_tries),
        seconds={module: round(seconds, 1) for module, seconds in modules.items()},
        slow=slow,
    )
