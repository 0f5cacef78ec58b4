"""What one run of `./lab test` consists of, by tier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tiers
from last_pass import NAME as LAST_PASS
from last_pass import LastPass
from reach import Reach, is_test
from selection import Chosen
from side_by_side import group
from sources import Sources

UNKNOWN_SECONDS = 5.0
"""A module of which the last pass knows nothing counts as this long."""


@dataclass(frozen=True)
class Plan:
    """The tests of one run."""

    tier: str
    why: str
    modules: tuple[str, ...]
    """Modules of tests and notebooks that hold what is chosen; pytest collects no others."""
    chosen: Chosen | None = None
    """Which of their tests run; None: all."""
    exhaustive: bool = False
    checks: bool = True
    """Whether the text is checked, too."""
    options: tuple[str, ...] = ()
    """For every pytest run."""
    reasons: dict[str, str] = field(default_factory=dict)
    """For each module that a change reaches, a changed file that does."""

    @property
    def notebooks(self) -> list[str]:
        """The last of the course first: they take longest, and no worker should end long after the others."""
        return sorted((path for path in self.modules if path.endswith(".ipynb")), reverse=True)

    @property
    def tests(self) -> list[str]:
        return [path for path in self.modules if not path.endswith(".ipynb")]

    def describe(self) -> str:
        """The plan for people, with the reason for each module that a change reaches."""
        counts = f"{len(self.tests)} modules of tests, {len(self.notebooks)} notebooks"
        lines = [f"lab test: {self.tier}: {counts}; {self.why}"]
        by_reason: dict[str, list[str]] = {}
        for module, reason in sorted(self.reasons.items()):
            by_reason.setdefault(reason, []).append(self._shown(module))
        lines += [
            f"    {reason} reaches {len(found)}: {' '.join(found)}" for reason, found in sorted(by_reason.items())
        ]
        return "\n".join(lines)

    def for_a_bare_machine(self) -> list[str]:
        """What runs on a machine that has Python alone: all that may differ there, or of it what a change reaches."""
        table = tiers.table()["bare"]
        if self.chosen is None:
            return [*table["always"], *table["tests"]]
        found = list(table["always"])
        for test in table["tests"]:
            module, _, name = test.partition("::")
            reached = [one for one in self.chosen.modules if one == module or one.startswith(f"{module}/")]
            found += [f"{one}::{name}" if name else one for one in reached]
        return found

    def _shown(self, module: str) -> str:
        exercises = self.chosen.modules.get(module) if self.chosen else None
        return f"{module}[{','.join(exercises)}]" if exercises else module


def default(files: Iterable[str], last: LastPass, why: str = "every check and test") -> Plan:
    """All tests but the exhaustive ones."""
    return Plan("default", why, _longest_first(filter(is_test, files), last))


def exhaustive(files: Iterable[str], shard: tuple[int, int], last: LastPass) -> Plan:
    """All tests, or the K-th of N parts that take about equally long."""
    number, count = shard
    parts: list[list[str]] = [[] for _ in range(count)]
    seconds = [0.0] * count
    for module in _longest_first(filter(is_test, files), last):
        shortest = seconds.index(min(seconds))
        parts[shortest].append(module)
        seconds[shortest] += _expected(module, last)
    why = f"shard {number} of {count}" if count > 1 else "every check and test, the exhaustive ones too"
    return Plan("all", why, tuple(parts[number - 1]), exhaustive=True)


def bare(tests: Iterable[str]) -> Plan:
    """These tests, on a machine that has Python alone."""
    return Plan("bare", "a machine that has Python alone", tuple(tests), checks=False, options=("--bare",))


def quick(files: Iterable[str], last: LastPass) -> Plan:
    """What runs in one process and on virtual ranks, without the slowest."""
    modules = (path for path in filter(is_test, files) if not tiers.real_kind(f"{path}::"))
    why = "one process and virtual ranks"
    return Plan("quick", why, _longest_first(modules, last), Chosen(quick=True, slow=_too_slow(last)))


def merge(sources: Sources, changed: Sequence[str] | None, last: LastPass) -> Plan:
    """Quick, one real run of each kind, and what has changed reaches; all tests where that cannot be computed.

    changed: files that differ from the last pass; None if that is unknown.
    """
    files = sorted(sources.files)
    table = tiers.table()
    if changed is None:
        return default(files, last, "no passed run is known in this history")
    reach = Reach(sources, table["everything"]["files"], table["reads"], table["otherwise"])
    found = reach.selection(path for path in changed if path != LAST_PASS)
    if found.everything:
        return default(files, last, found.everything)
    chosen = Chosen(
        modules={module: None if names is None else sorted(names) for module, names in found.modules.items()},
        tests=list(table["one_of_each"].values()),
        quick=True,
        slow=_too_slow(last),
        exercises=sorted(sources.exercises),
    )
    modules = {
        *found.modules,
        *quick(files, last).modules,
        *(path for path in filter(is_test, files) if any(test.startswith(path) for test in chosen.tests)),
    }
    why = f"{len(changed)} files have changed since {last.commit[:8]}"
    return Plan("merge", why, _longest_first(modules, last), chosen, reasons=found.reasons)


def _longest_first(modules: Iterable[str], last: LastPass) -> tuple[str, ...]:
    """In this order no worker ends long after the others: modules that stay together count as one."""
    groups = {module: group(Path(module)) or module for module in modules}
    seconds = dict.fromkeys(groups.values(), 0.0)
    for module, together in groups.items():
        seconds[together] += _expected(module, last)
    return tuple(sorted(groups, key=lambda module: (-seconds[groups[module]], groups[module], module)))


def _expected(module: str, last: LastPass) -> float:
    """Seconds that it will take."""
    return last.seconds.get(module, UNKNOWN_SECONDS)


def _too_slow(last: LastPass) -> list[str]:
    """Tests that the quick tier leaves out, so that it stays within its minutes."""
    limit = tiers.table()["quick"]["longest_seconds"]
    return sorted(test for test, seconds in last.slow.items() if seconds > limit)
