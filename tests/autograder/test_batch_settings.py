"""Settings of nbgrader_config.py on the command line of `labkit autograde`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import second_exercise
from traitlets.config import Config

from autograder.batch.settings import BadSetting, read_settings
from autograder.batch.status import status_of
from autograder.course_folder import Course
from autograder.sandbox import Sandbox

NAME = second_exercise.NAME
PHASE, NOTEBOOK = second_exercise.PHASE, second_exercise.NOTEBOOK


def test_settings_are_read_as_in_the_configuration_file() -> None:
    read = read_settings(
        [
            "--JudgeCells.timeout=8",
            "--Sandbox.memory_bytes=2147483648",
            "--Sandbox.cgroups=False",
            "--Autograde.force=True",
        ]
    )
    assert read == Config(
        JudgeCells={"timeout": 8.0}, Sandbox={"memory_bytes": 2 << 30, "cgroups": False}, Autograde={"force": True}
    )


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--JudgeCells.timeuot=8", "did you mean --JudgeCells.timeout"),
        ("--Sanbox.memory_bytes=8", "did you mean --Sandbox.memory_bytes"),
        ("--JudgeCells.timeout=soon", "JudgeCells.timeout cannot be 'soon'"),
        ("--Sandbox.cgroups=perhaps", "Sandbox.cgroups cannot be 'perhaps'"),
        ("--Sandbox.runner=no.such.Class", "Sandbox.runner cannot be 'no.such.Class'"),
        ("--JudgeCells.timeout", "a setting is given as --JudgeCells.timeout=40"),
        ("--worker=2", "a setting is given as --JudgeCells.timeout=40"),
    ],
)
def test_what_is_no_setting_is_refused_with_what_to_write_instead(argument: str, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        read_settings([argument])


@pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")
def test_the_command_judges_with_the_settings_that_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second_exercise.add_to(tmp_path)
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    source = tmp_path / "notebooks" / PHASE / f"{NOTEBOOK}.ipynb"
    nbformat.write(second_exercise.notebook(NAME, second_exercise.SOLUTION, points=3), source)
    course = Course(tmp_path / "course")
    course.release(PHASE)
    course.submit("learner", PHASE, NOTEBOOK, nbformat.read(source, as_version=4))
    done = subprocess.run(
        [sys.executable, "-m", "labkit", "autograde", PHASE, "--workers=1", "--JudgeCells.timeout=8"],
        env=dict(os.environ),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # a verdict is valid for the settings that it was made with
    (line,) = status_of(Course(course.folder, Config(JudgeCells={"timeout": 8.0})), PHASE)
    assert (line.state, line.earned) == ("graded", 3.0)
    (line,) = status_of(course, PHASE)
    assert line.state == "waiting"
