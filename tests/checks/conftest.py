"""A course with one small exercise, in its own tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from checks import course as small


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The course's folder; `LABKIT_ROOT` points to it."""
    small.write(tmp_path / "course")
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path / "course"))
    return tmp_path / "course"
