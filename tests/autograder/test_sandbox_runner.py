"""A site's own runner in place of bubblewrap."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import pytest
from traitlets.config import Config
from waiting import BROKEN_SECONDS

from autograder.sandbox import CommandRunner, Limits, Sandbox, SandboxUnavailable, processes
from labkit.clusters import Job
from labkit.clusters.local import local


class Limited(CommandRunner):
    """Stands in for a container with a program that all machines have."""

    def check(self) -> None:
        """Always succeed."""

    def prefix(self, limits: Limits) -> Sequence[str]:
        return ("prlimit", f"--nofile={limits.processes}", "--")

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), "HOME": "/", "SITE": "ours"}


class Missing(Limited):
    def prefix(self, limits: Limits) -> Sequence[str]:
        return ("no-such-container",)


def configured(name: str) -> Sandbox:
    return Sandbox(config=Config({"Sandbox": {"runner": f"{__name__}.{name}"}}), processes=321)


def test_a_site_names_its_runner_and_the_watchdog_keeps_its_books() -> None:
    with configured("Limited").open() as instance:
        source = "import os, resource\nprint(os.environ['SITE'], resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
        run = local(1, forkserver=instance.forkserver).run(Job(source=source, timeout=BROKEN_SECONDS))
        assert run.ranks[0].output == "ours 321\n"
    assert instance.usage().cpu_seconds > 0


def test_a_runner_that_cannot_start_is_no_mark() -> None:
    with pytest.raises(SandboxUnavailable, match="no-such-container"):
        configured("Missing").open()


def test_files_of_this_machine_are_not_counted_as_a_submissions() -> None:
    """Without its own /tmp, a submission would otherwise be ended for files that others have stored there."""
    assert processes.in_scratch_folders([os.getpid()]) == {}
