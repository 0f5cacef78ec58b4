"""One process that has torch imported, for all live ranks of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from labkit.clusters.warm import WarmProcess


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmProcess]:
    started = WarmProcess()
    yield started
    started.close()
