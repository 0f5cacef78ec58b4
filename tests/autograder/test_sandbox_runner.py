"""A site puts something of its own in bubblewrap's place."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import pytest
from traitlets.config import Config

from autograder.sandbox import CommandRunner, Limits, Sandbox, SandboxUnavailable, processes
from labkit.clusters import Job
from labkit.clusters.local import local


class Limited(CommandRunner):
    """What a container would do is done by a program that all machines have."""

    def check(self) -> None:
        """It always can."""

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
    with configured("Limited").open() as enclosure:
        source = "import os, resource\nprint(os.environ['SITE'], resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
        run = local(1, warm=enclosure.warm).run(Job(source=source, timeout=60))
        assert run.ranks[0].output == "ours 321\n"
    assert enclosure.usage().cpu_seconds > 0


def test_a_runner_that_cannot_start_is_no_mark() -> None:
    with pytest.raises(SandboxUnavailable, match="no-such-container"):
        configured("Missing").open()


def test_files_of_this_machine_are_not_counted_as_a_submissions() -> None:
    """Without a /tmp of its own a submission would be ended for what others have stored there."""
    assert processes.in_scratch_folders([os.getpid()]) == {}
