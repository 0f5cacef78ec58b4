"""Benchmarks are programs: most tests run them as such, those of wrong options in this process."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`refusal("launch.py", "--ranks", "0")` is what that program prints before it ends with status 2."""

    def run(program: str, *options: str) -> str:
        monkeypatch.syspath_prepend(str(FOLDER))
        monkeypatch.setattr(sys, "argv", [program, *options])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(FOLDER / program), run_name="__main__")
        assert ended.value.code == 2
        return capsys.readouterr().err

    return run
