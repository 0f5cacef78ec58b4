"""Every command of the shell, as the parser itself lists them: a new one is covered without a word here."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.cli import main, parser
from labkit.command_line.parser import CommandParser

TRIALS = Path(__file__).parent / "trials.py"
FRAGMENTS = ("of", "for", "its", "until", "also", "from", "default", "default:", "(default:")
"""Words with which a phrase that needs the option's name begins."""
OUTPUTS = {"--to", "--report", "--json", "--save", "--new", "--traces", "--into", "--backup"}
"""Options that name a file to write: the result, the same in the format of the suffix, as JSON, ..."""
INPUTS = {"--file", "--config", "--course", "--also", "--site", "--restore"}


def names(of: CommandParser) -> Iterator[str]:
    inner = of.commands()
    if not inner:
        yield of.prog
    for below in inner.values():
        yield from names(below)


COMMANDS = sorted(names(parser()))
each_command = pytest.mark.parametrize("command", COMMANDS)


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("trials")
    done = subprocess.run(
        [sys.executable, TRIALS], cwd=folder, env={**os.environ, "COLUMNS": "100"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []  # no trial has written anything
    return dict(json.loads(done.stdout))


def test_the_parser_lists_the_commands(trials: dict[str, dict[str, Any]]) -> None:
    assert {"labkit launch", "labkit bench scaling", "labkit jobs", "labkit predict", "labkit autograde"} <= {*COMMANDS}
    assert sorted(trials) == COMMANDS


@each_command
def test_help_and_version(trials: dict[str, dict[str, Any]], command: str) -> None:
    help_, version = trials[command]["help"], trials[command]["version"]
    assert (help_["status"], help_["err"]) == (0, "") and help_["out"].startswith(f"usage: {command}")
    assert (version["status"], version["err"]) == (0, "") and version["out"].startswith("labkit ")


@each_command
def test_help_is_phrases(trials: dict[str, dict[str, Any]], command: str) -> None:
    for option in trials[command]["shown"]:
        words = (option["help"] or "").split()
        assert len(words) > 1 and words[0].lower() not in FRAGMENTS, option


@each_command
def test_output_files_have_one_name(trials: dict[str, dict[str, Any]], command: str) -> None:
    files = {option["name"] for option in trials[command]["shown"] if option["is_path"]}
    assert files <= OUTPUTS | INPUTS


@each_command
def test_a_misspelt_option_is_refused_with_what_was_meant(trials: dict[str, dict[str, Any]], command: str) -> None:
    if (tried := trials[command].get("misspelt")) is None:
        assert command in ("labkit autograde", "labkit start", "labkit teach")  # which pass unknown options on
        return
    (line,) = tried["err"].splitlines()  # nor is torch imported
    assert tried["status"] == 2 and tried["out"] == ""
    assert line.startswith(f"{command}: unknown option {tried['meant']}x; did you mean {tried['meant']}?"), line


@each_command
def test_missing_arguments_are_refused_on_one_line(trials: dict[str, dict[str, Any]], command: str) -> None:
    if (tried := trials[command].get("incomplete")) is None:
        return  # none is required
    (line,) = tried["err"].splitlines()
    assert tried["status"] == 2 and "required" in line, line


@each_command
def test_ctrl_c_ends_it_without_a_traceback(trials: dict[str, dict[str, Any]], command: str) -> None:
    tried = trials[command]["interrupted"]
    assert (tried["status"], tried["out"], tried["err"]) == (130, "", "labkit: interrupted\n"), tried


def test_jobs_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["jobs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    for name, record in (("train-1", "{"), ("train-2", json.dumps(RECORD))):
        folder = tmp_path / "labkit" / "jobs" / name
        folder.mkdir(parents=True)
        (folder / "job.json").write_text(record)
    (folder / "exit_status").write_text("1\n")
    assert main(["jobs", "--json"]) == 0
    damaged, failed = json.loads(capsys.readouterr().out)
    assert damaged["phase"] == "unknown" and damaged["command"] is None and "job.json is not JSON" in damaged["state"]
    assert failed == {
        "name": "train-2", "phase": "ended", "state": "failed, exit status 1", "exit_status": 1, "cluster": "local",
        "host": "here", "directory": "/", "launched": "2026-11-30T06:00:00", "command": "train.py -n 2",
        "batch_id": None, "output": str(folder / "output"),
    }  # fmt: skip


RECORD = {
    "command": "train.py -n 2", "cluster": "local", "directory": "/", "host": "here", "launched": "2026-11-30T06:00:00",
    "in_batch_job": False, "tasks": [],
}  # fmt: skip


def test_a_prediction_as_json_on_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = shlex.split("predict --model gpt-1.3b --cluster a100x8 --tensor 1 --pipeline 1 --data 8 --microbatch 1")
    assert main([*asked, "--json", "-"]) == 0
    printed = capsys.readouterr().out
    assert main([*asked, "--json", "there.json"]) == 0
    assert json.loads(printed) == json.loads(Path("there.json").read_text())
    assert [file.name for file in tmp_path.iterdir()] == ["there.json"]
