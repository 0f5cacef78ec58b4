"""Files that people write, in the encodings of Windows' editors: read as UTF-8, or refused with the line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import second_exercise

from autograder.course_folder import CONFIG_FILE, Course
from autograder.judge import hidden_rubric
from labkit import catalogue
from labkit.cli import main
from labkit.clusters.kubernetes.pod_template import read_template

ENCODINGS = ["utf-8-sig", "utf-16", "utf-16-le"]
each = pytest.mark.parametrize("encoding", ENCODINGS)
NAME = second_exercise.NAME


def encode(path: Path, encoding: str) -> None:
    """Write a file anew, as an editor on Windows or PowerShell would."""
    path.write_bytes(path.read_text().replace("\n", "\r\n").encode(encoding))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "lab"
    second_exercise.add_to(folder)
    monkeypatch.setenv("LABKIT_ROOT", str(folder))
    return folder


@each
def test_a_pod_template_and_one_of_a_classroom(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text('spec:\n  nodeSelector: {room: "Ü1"}\n')
    encode(path, encoding)
    assert read_template(path) == {"spec": {"nodeSelector": {"room": "Ü1"}}}


@each
def test_settings_of_a_course(encoding: str, lab: Path, tmp_path: Path) -> None:
    own = tmp_path / "course" / "nbgrader_config.py"
    own.parent.mkdir()
    own.write_text('c = get_config()\n# für alle\nc.LateRule.percent_per_day = 10\nc.CourseDirectory.course_id = "ü"\n')
    encode(own, encoding)
    config = Course(own.parent).config
    assert (config.LateRule.percent_per_day, config.CourseDirectory.course_id) == (10, "ü")


def nbgrader(course: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LABKIT_COURSE": str(course)}
    command = [sys.executable, "-m", "nbgrader", "db", "assignment", "list"]
    return subprocess.run(command, cwd=CONFIG_FILE.parent, env=environment, capture_output=True, text=True)


def test_settings_of_a_course_for_nbgraders_own_commands(tmp_path: Path) -> None:
    own = tmp_path / "nbgrader_config.py"
    own.write_bytes("c = get_config()\nprint('für alle gelesen')\n".encode("utf-16"))
    done = nbgrader(tmp_path)
    assert done.returncode == 0 and "für alle gelesen" in done.stdout, done.stderr
    for text, problem in ((b"c = get_config()\n# \xff\n", ": line 2 is not UTF-8 text"), (b"c = (\n", ", line 1: '('")):
        own.write_bytes(text)
        done = nbgrader(tmp_path)
        assert done.returncode == 2 and done.stderr.startswith(f"{own}{problem}"), done.stderr
        assert len(done.stderr.splitlines()) == 1


@each
def test_modules_and_rubrics_and_catalogues(
    encoding: str, lab: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    exercise = catalogue.find(NAME)
    rubric = lab / "autograder" / "course" / NAME / "rubric.py"
    points = hidden_rubric(exercise).points
    solution = exercise.source("solution")[0]
    for path in (rubric, exercise.paths["solution"], lab / "labkit" / "catalogue.toml"):
        encode(path, encoding)
    assert hidden_rubric(catalogue.find(NAME)).points == points
    assert catalogue.find(NAME).source("solution")[0] == solution
    module = lab / "mine.py"
    module.write_text(solution)
    encode(module, encoding)
    assert main(["check", NAME, "--file", str(module)]) == 0, capsys.readouterr()


def test_a_module_that_is_no_text_is_named(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    yours = catalogue.find(NAME).paths["yours"]
    yours.parent.mkdir(parents=True, exist_ok=True)
    yours.write_bytes(b"x = 1\ny = '\xff'\n")
    try:
        assert main(["check", NAME]) == 2
    finally:
        yours.unlink()
    error = capsys.readouterr().err
    assert error.splitlines() == [f"{yours}: line 2 is not UTF-8 text: save the file as UTF-8 in your editor"]
