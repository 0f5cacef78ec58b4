"""The files of this checkout, read once for all tests of what a change reaches."""

from __future__ import annotations

from pathlib import Path

import pytest
from changes import Checkout
from sources import Sources

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def files() -> list[str]:
    found = Checkout(ROOT).files()
    assert found is not None
    return found


@pytest.fixture(scope="session")
def sources(files: list[str]) -> Sources:
    return Sources(ROOT, files)
