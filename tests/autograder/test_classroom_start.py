"""The start of `labkit hub`, on slow machines and interrupted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from classroom_person import Person
from clocks import ManualClock
from small_classroom import small_classroom

from autograder.classroom.starting import StartLog, wait_until_up
from autograder.sandbox import Sandbox
from labkit.command_line.commands import CommandError

EARLIER = "the error of the start before\n"


@pytest.fixture
def log(tmp_path: Path) -> StartLog:
    path = tmp_path / "hub.log"
    path.write_text(EARLIER)
    return StartLog(path)


@pytest.fixture
def living() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process


def test_a_slow_start_is_awaited_as_long_as_its_log_goes_on(living: subprocess.Popen[bytes], log: StartLog) -> None:
    clock, looks = ManualClock(), 0

    def answers() -> bool:
        nonlocal looks
        looks += 1
        clock.advance(100)
        with log.path.open("a") as file:
            file.write(f"step {looks}\n")
        return looks == 6

    wait_until_up(living, answers, log, 120, clock)
    assert clock() == 600


def test_a_start_without_progress_is_given_up_with_its_own_log(living: subprocess.Popen[bytes], log: StartLog) -> None:
    clock = ManualClock()
    with log.path.open("a") as file:
        file.write("starting\n")

    def answers() -> bool:
        clock.advance(50)
        return False

    with pytest.raises(CommandError, match=r"written nothing to .*hub\.log for 120 s") as given_up:
        wait_until_up(living, answers, log, 120, clock)
    assert "set start_seconds" in str(given_up.value) and str(given_up.value).endswith("\nstarting")
    assert EARLIER.strip() not in str(given_up.value)


def test_a_start_that_writes_nothing_shows_no_log_of_another(living: subprocess.Popen[bytes], log: StartLog) -> None:
    clock = ManualClock()
    with pytest.raises(CommandError) as given_up:
        wait_until_up(living, lambda: bool(clock.advance(50)), log, 120, clock)
    assert "it has written nothing" in str(given_up.value) and EARLIER.strip() not in str(given_up.value)


def test_a_dead_process_is_reported_with_what_it_wrote(log: StartLog) -> None:
    with (
        log.path.open("ab") as file,
        subprocess.Popen(
            [sys.executable, "-c", "print('no such setting', flush=True); raise SystemExit(3)"], stdout=file
        ) as process,
        pytest.raises(CommandError, match=r"ended with status 3\nno such setting$"),
    ):
        wait_until_up(process, lambda: False, log, 120, ManualClock())


@pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")
def test_after_a_start_that_failed_the_instructor_logs_in_with_the_password_that_it_showed(tmp_path: Path) -> None:
    classroom = small_classroom(tmp_path)
    configuration = tmp_path / "cluster/jupyterhub/jupyterhub_config.py"
    text = configuration.read_text()
    configuration.write_text("raise SystemExit('not today')")
    failed = classroom.labkit("hub", "--site", str(classroom.site))
    assert failed.returncode == 2 and "JupyterHub does not start" in failed.stderr, failed.stderr
    (shown,) = (line for line in failed.stdout.splitlines() if "instructor instructor: password" in line)
    configuration.write_text(text)
    with classroom.running() as hub:
        assert "logs in with the password shown at an earlier start" in hub.output
        assert Person(classroom.address, "instructor", shown.split("password ")[1].split()[0]).logged_in
