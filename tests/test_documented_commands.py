"""Every command of the documentation is one that its program understands; quick ones are run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from documented_commands import ELSEWHERE, OURS, Command, commands, parse

from labkit.cli import main

COMMANDS = commands()
PATTERNS = {"COMMAND": "stands for any of them"}
"""Words of commands that are patterns, not commands."""
QUICK = r"labkit (predict --(?!help).*|jobs|progress|check ring_allreduc|sync --check)"
"""Commands that take a second at most."""
RUN_ELSEWHERE = "docs/capabilities.md"
"""The page whose commands tests/test_capabilities.py runs."""
REFUSED = "docs/troubleshooting.md"
"""The page whose commands show errors."""


def first_word(command: Command) -> str:
    return next(word for word in command.text.split() if not re.match("[A-Z_]+=", word))


def test_documented_commands_are_understood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # a parser that did not stop would not write to the repository
    read = 0
    for command in COMMANDS:
        if first_word(command) in OURS and not PATTERNS.keys() & set(command.text.split()):
            parse(command, monkeypatch)
            read += 1
    assert read > 100


def test_each_reason_not_to_parse_is_of_a_command_that_is_there() -> None:
    assert set(ELSEWHERE) - {first_word(command) for command in COMMANDS} == set()


@pytest.mark.parametrize(
    "text",
    ["labkit predict --modell gpt-13b", "./lab nonsense", "nbgrader collect x --nonsense=1", "python nothing.py"],
)
def test_a_command_that_is_wrong_is_noticed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        parse(Command(text, "here", whole=True), monkeypatch)


def quick() -> list[Command]:
    plain = [command for command in COMMANDS if not re.search(r"\b[A-Z]{4,}\b|machine\.json", command.text)]
    return [
        command
        for command in plain
        if command.page != RUN_ELSEWHERE and re.fullmatch(QUICK, command.text.replace("./lab", "labkit"))
    ]


def test_quick_commands_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert len(quick()) >= 12
    for command in quick():
        status = main(shlex.split(command.text)[1:])
        shown = capsys.readouterr()
        assert (status == 0) == (command.page != REFUSED), f"{command}\n{shown.out}\n{shown.err}"
        assert shown.out or shown.err, command
