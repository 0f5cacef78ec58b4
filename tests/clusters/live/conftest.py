"""One forkserver with torch imported, for all live ranks of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from labkit.clusters.forkserver import ForkServer


@pytest.fixture(scope="session")
def forkserver() -> Iterator[ForkServer]:
    started = ForkServer()
    yield started
    started.close()
