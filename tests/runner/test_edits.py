"""Edits that break something: the tests that fail by them are among those that the edited file reaches."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from reach import Reach
from selection import Chosen
from sources import Sources
from tiers import table

ROOT = Path(__file__).resolve().parent.parent.parent
EDITS: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("edits.toml").read_text())["edit"]
"""Each: a file, the text that is replaced in it, what it is replaced by, and tests that fail then."""
pytestmark = pytest.mark.parametrize("edit", EDITS, ids=[edit["file"] for edit in EDITS])


@pytest.fixture(scope="module")
def here(sources: Sources) -> Reach:
    return Reach(sources, table()["everything"]["files"], table()["reads"], table()["otherwise"])


def test_what_fails_by_an_edit_is_selected(edit: dict[str, Any], here: Reach, sources: Sources) -> None:
    assert sources.text(edit["file"]).count(edit["old"]) == 1
    found = here.selection([edit["file"]])
    assert found.everything == "", "a selection is computed"
    modules = {module: None if names is None else sorted(names) for module, names in found.modules.items()}
    chosen = Chosen(modules=modules, exercises=sorted(sources.exercises))
    assert [test for test in edit["fails"] if not chosen.has(test)] == []


@pytest.mark.exhaustive
def test_those_tests_fail_by_it(edit: dict[str, Any], sources: Sources, tmp_path: Path) -> None:
    for path in sources.files:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    edited = tmp_path / edit["file"]
    edited.write_text(edited.read_text().replace(edit["old"], edit["new"]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", *edit["fails"]]
    # the forkservers of ranks, too, import the copy: the environment's packages are those of this checkout
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert f"{len(edit['fails'])} failed" in done.stdout.splitlines()[-1], done.stdout
