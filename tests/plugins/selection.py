"""`--selection FILE`: of the collected tests only those that ./lab test has chosen; it writes the file.

A tier consists of rules, one of which must fit a test: modules, each whole or with the tests of some exercises;
patterns of node ids; `quick`, all that run in this process and on virtual ranks, without the slowest.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
import tiers


@dataclass(frozen=True)
class Chosen:
    """The rules of one run."""

    modules: dict[str, list[str] | None] = field(default_factory=dict)
    """Modules and notebooks; of each the exercises whose tests are chosen, or None: all of its tests."""
    tests: list[str] = field(default_factory=list)
    """Patterns of node ids."""
    quick: bool = False
    slow: list[str] = field(default_factory=list)
    """Node ids that are too slow for `quick`."""
    exercises: list[str] = field(default_factory=list)
    """Short names of all exercises."""

    def has(self, nodeid: str) -> bool:
        """Whether this test runs."""
        module, _, name = nodeid.partition("::")
        if module in self.modules and self._is_of(name, self.modules[module]):
            return True
        if tiers.matches(nodeid, self.tests):
            return True
        return self.quick and not tiers.real_kind(nodeid) and nodeid not in self.slow

    def _is_of(self, name: str, exercises: list[str] | None) -> bool:
        """Whether a test is about one of these exercises, or about none in particular."""
        if exercises is None:
            return True
        named = set(re.findall(r"[a-z0-9_]+", name.partition("[")[2])) & set(self.exercises)
        return not named or bool(named & set(exercises))

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--selection", type=Path, metavar="FILE", help="run only the tests that the file chooses")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (path := config.getoption("selection")) is None:
        return
    chosen = Chosen(**json.loads(path.read_text()))
    left_out = [item for item in items if not chosen.has(item.nodeid)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]
