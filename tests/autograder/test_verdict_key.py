"""What a verdict depends on: an edit of code that no judgement uses leaves stored verdicts valid."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

import autograder
import labkit
from autograder.verdicts.key import SILENT


@pytest.mark.parametrize("package", [autograder, labkit])
def test_what_no_verdict_depends_on_exists(package: ModuleType) -> None:
    folder = Path(str(package.__file__)).parent
    names = {part for path in folder.rglob("*.py") for part in path.relative_to(folder).parts}
    assert SILENT[package.__name__] - names - {"tests"} == set()
