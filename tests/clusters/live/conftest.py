"""One forkserver with torch imported, for all live ranks of these tests."""

from __future__ import annotations

import pytest

from labkit.clusters.forkserver import ForkServer, shared


@pytest.fixture(scope="session")
def forkserver() -> ForkServer:
    return shared()
