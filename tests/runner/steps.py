"""The commands of one run of `./lab test`, one after the other; a failure does not stop the run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from plan import Plan

CHECKS = {
    "ruff check": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
    "imports point downwards": ["lint-imports", "--no-logo"],
    "labkit sync": ["labkit", "sync", "--check"],
}
NBVAL = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with", "tests/nbval.cfg"]
# a limit ends a cell that hangs, and is below that of pytest-timeout, whose message would not name the cell
NBVAL += ["--nbval-cell-timeout", "800"]

IN_ORDER = ["--no-loadscope-reorder", "--dist"]
"""xdist would begin with the modules that have most tests; the plan begins with those that take longest."""

NOTHING_RUN = 5
"""Exit status of pytest where no test was left to run."""


class Steps:
    """Runs a plan."""

    def __init__(self, root: Path, scratch: Path, plan: Plan, options: Sequence[str], outcomes: Path) -> None:
        """scratch: a folder for this run alone. options: for the last pytest run, which sums up. outcomes: a file."""
        self._root = root
        self._scratch = scratch
        self._plan = plan
        self._options = options
        self._outcomes = outcomes
        self._failed: list[str] = []
        self._runs = scratch / "runs"
        self._runs.mkdir()
        self._environment = {**os.environ, "LAB_TEST_RUNS": str(self._runs)}
        # no more than there are cores: what tests of real processes wait for would wait for a core, too
        self.workers = int(os.environ.get("LAB_WORKERS") or len(os.sched_getaffinity(0)))

    def run(self) -> list[str]:
        """Run all steps; return the names of those that failed. pytest comes last: its closing line closes the run."""
        # the lab's own byte code: a tenth of a second in each of some thousand processes, where nobody writes it
        compiled = ["-x", "/(course/.*/(mutants|variants)|tests)/", "labkit", "autograder"]
        subprocess.run([sys.executable, "-m", "compileall", "-q", "-j", "0", *compiled])
        if self._plan.checks:
            self._checks()
        self._notebooks()
        self._tests()
        return self._failed

    def _checks(self) -> None:
        """Checks of the text. mypy takes longer than the others together, which run beside it; no test does."""
        log = self._scratch / "mypy"
        with log.open("w") as file:
            mypy = subprocess.Popen(["mypy"], stdout=file, stderr=subprocess.STDOUT)
        for name, command in CHECKS.items():
            self._step(name, command)
        self._say("mypy")
        status = mypy.wait()
        print(log.read_text(), end="", flush=True)
        if status:
            self._failed.append("mypy")

    def _notebooks(self) -> None:
        if notebooks := self._plan.notebooks:
            # notebooks save modules; those of whoever runs the tests stay as they are. Side by side, a notebook may
            # come before the one that writes what it builds on
            shutil.copytree("solutions", self._scratch / "workspace")
            side_by_side = [*self._side_by_side, *IN_ORDER, "loadscope"]
            self._pytest("notebooks", [*NBVAL, *side_by_side, *notebooks], **self._workspace)

    def _tests(self) -> None:
        tests = self._plan.tests
        # only their files: to collect all tests takes longer than to run some of these
        alone = [path for path in tests if path.endswith(".py") and "mark.alone" in (self._root / path).read_text()]
        side_by_side = [*self._side_by_side, *IN_ORDER, "loadgroup", "-m", self._marked("not alone")]
        self._pytest("tests", [*side_by_side, *([] if alone else self._options), *tests])
        if alone:
            self._pytest("tests that run alone", ["-m", self._marked("alone"), *self._options, *alone])
        if self._rows("failures"):
            self._pytest("second tries", ["--second-try", *NBVAL, *self._options], **self._workspace)

    def second_tries(self) -> list[str]:
        """Node ids of the tests that passed only at their second try."""
        return [row["test"] for row in self._rows("lucky")]

    def _rows(self, name: str) -> list[dict[str, str]]:
        """What the pytest runs have kept under this name, see tests/plugins/earlier_runs.py."""
        path = self._runs / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def _workspace(self) -> dict[str, str]:
        """Where notebooks save modules; tests have workspaces of their own."""
        return {"LABKIT_WORKSPACE": str(self._scratch / "workspace")}

    @property
    def _side_by_side(self) -> list[str]:
        return ["-n", str(self.workers)]

    def _marked(self, expression: str) -> str:
        return expression if self._plan.exhaustive else f"{expression} and not exhaustive"

    def _pytest(self, name: str, arguments: Sequence[str], **environment: str) -> None:
        """Run pytest. That nothing is left to run is no failure: of a shard that goes on, or of what is chosen."""
        command = ["pytest", f"--outcomes={self._outcomes}", *self._plan.options]
        if self._plan.chosen is not None:
            self._plan.chosen.save(file := self._scratch / "chosen.json")
            command.append(f"--selection={file}")
        if self._plan.exhaustive:
            command.append(f"--unless-in={self._outcomes}")
        self._step(name, [*command, *arguments], NOTHING_RUN, **environment)

    def _step(self, name: str, command: Sequence[str], *well: int, **environment: str) -> None:
        """Run a command; 0 and `well` are exit statuses that are no failure."""
        self._say(name)
        if subprocess.run(command, env={**self._environment, **environment}).returncode not in (0, *well):
            self._failed.append(name)

    def _say(self, name: str) -> None:
        print(f"\nlab test: {name}", flush=True)
