"""The course tree of the class."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pass_around
import pytest


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("tree")
    pass_around.add_to(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_ROOT", str(folder))
        yield folder
