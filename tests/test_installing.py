"""Hints to install a missing package: from the list with hashes, which pip takes; no other line says `pip install`."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import installing
from labkit.installing import how_to_install

ROOT = Path(__file__).parents[1]
HINTS = re.compile(r"how_to_install\(f?[\"'](\S+?)[\"'], [\"'](\w+)[\"']\)")


OWN_PROJECTS = {"hangs.md", "testing_without_gpus.md"}
"""Pages that say what readers install beside programs of their own, without the lab."""


def hints() -> dict[str, str]:
    """Packages of all hints, and their lists."""
    files = [path for folder in ("labkit", "autograder") for path in (ROOT / folder).rglob("*.py")]
    return {name.partition("==")[0]: listed for path in files for name, listed in HINTS.findall(path.read_text())}


def members(name: str) -> str:
    """The text of a list, and of those that it begins with."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return "".join(map(members, re.findall(r"^-r (\S+)\.txt$", text, re.MULTILINE))) + text


def test_each_hint_names_a_list_that_has_the_package() -> None:
    found = hints()
    assert len(found) >= 8
    for package, listed in found.items():
        assert re.search(rf"^{re.escape(package)}==", members(listed), re.MULTILINE), (package, listed)


def test_the_command_is_one_that_pip_takes() -> None:
    command = shlex.split(how_to_install("tensorboard", "ranks"))
    assert command[:4] == [sys.executable, "-m", "pip", "install"] and "--require-hashes" in command
    assert Path(command[-1]) == ROOT / "requirements" / "ranks.txt"
    done = subprocess.run([*command, "--dry-run", "--no-index"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr  # all of it is here already, with these versions


def test_elsewhere_the_hint_says_that_nothing_is_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installing, "__file__", str(tmp_path / "labkit" / "installing.py"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    assert how_to_install("tensorboard", "ranks").endswith(
        "-m pip install tensorboard (its newest version, compared with no hash)"
    )


def test_no_other_line_of_the_lab_tells_to_install_what_is_in_a_list_without_hashes() -> None:
    lists = "".join(path.read_text() for path in (ROOT / "requirements").glob("*.txt"))
    listed = {"labkit", "autograder", *re.findall(r"^([\w.-]+)==", lists, re.MULTILINE)}
    files = [path for folder in ("labkit", "autograder", "docs", "cluster") for path in (ROOT / folder).rglob("*.*")]
    without_hashes = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in files
        if path.suffix in (".py", ".md", ".toml", ".yaml", ".j2", ".txt") and path.name not in OWN_PROJECTS
        for line in path.read_text().splitlines()
        if "--require-hashes" not in line and "--no-deps" not in line
        for name in re.findall(r"pip install (?:-\S+ )*['\"]?(?:\./)?([A-Za-z][\w.-]*)", line)
        if name in listed
    ]
    assert without_hashes == []
