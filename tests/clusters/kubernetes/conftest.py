"""A stand-in cluster, and a kubeconfig for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from standin_cluster import StandInCluster
from system_packages import needs_packages

from labkit.clusters.kubernetes.sessions import Session


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder for sessions."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("labkit.clusters.kubernetes.cluster.session", own := Session())
    monkeypatch.setattr("labkit.clusters.kubernetes.submission.session", own)
    return tmp_path / "state"


@pytest.fixture
def standin(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInCluster]:
    """See standin_cluster.py: not a real Kubernetes."""
    needs_packages("openssl")
    cluster = StandInCluster(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    yield cluster
    cluster.close()
