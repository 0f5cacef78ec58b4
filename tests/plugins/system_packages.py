"""Tests that need a system package are skipped where it is missing, and a closing line counts them.

`needs_packages("chromium")`, in a test or in a fixture, is the only way to require system packages.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Generator, Sequence

import pytest
from earlier_runs import EarlierRuns

PROGRAMS = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "g++": ("g++",),
    "iproute2": ("ip",),
    "kubernetes-client": ("kubectl",),
    "munge": ("munged",),
    "openssl": ("openssl",),
    "prometheus": ("prometheus",),
    "slurm-client": ("srun",),
    "slurmctld": ("slurmctld",),
    "slurmd": ("slurmd",),
}
"""Programs of each Debian package: one of them suffices."""
FOLDERS = ("/usr/sbin", "/sbin")
"""Folders searched besides PATH: Debian has daemons there."""
REASON = "needs system packages: "
_skipped = pytest.StashKey[list[str]]()
_earlier = pytest.StashKey[EarlierRuns]()


def needs_packages(*packages: str) -> None:
    """Skip the test, or all tests of the fixture, where one of these system packages is missing."""
    if missing := [package for package in packages if program(package) is None]:
        pytest.skip(REASON + " ".join(missing))


def program(package: str) -> str | None:
    """Return the path of the package's program, None where it is not installed."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS])
    return next((found for name in PROGRAMS[package] if (found := shutil.which(name, path=path))), None)


def missing() -> list[str]:
    """Return the packages for want of which tests would be skipped here."""
    from autograder.sandbox.bwrap import bwrap

    found = [package for package in PROGRAMS if program(package) is None]
    try:
        bwrap()
    except FileNotFoundError:
        found.append("bubblewrap")
    return found


def command_to_install(packages: Sequence[str]) -> str:
    """Return the command for root of a Debian machine. prometheus recommends a service that no test needs."""
    without = " prometheus-node-exporter-" if "prometheus" in packages else ""
    return f"apt-get update && apt-get install -y {' '.join(packages)}{without}"


def closing_line(skipped: list[str]) -> str:
    """Return how many tests were skipped, by the packages that they need."""
    counts = Counter(skipped).most_common()
    parts = [f"{count} {'test' if count == 1 else 'tests'} ({packages})" for packages, count in counts]
    return f"skipped for want of system packages: {', '.join(parts)}"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_skipped] = []
    config.stash[_earlier] = EarlierRuns("skipped")
    config.pluginmanager.register(_Counting(config.stash[_skipped]))


class _Counting:
    def __init__(self, skipped: list[str]) -> None:
        self._skipped = skipped

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            if reason.startswith(REASON):
                self._skipped.append(reason.removeprefix(REASON))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Generator[None]:
    yield
    if skipped := config.stash[_earlier].joined_by(config.stash[_skipped]):
        terminalreporter.write_line(closing_line(skipped), yellow=True)
