"""The manifests of cluster/kubernetes, built by the real kubectl."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from system_packages import needs_packages

ROOT = Path(__file__).parents[3] / "cluster" / "kubernetes"
BUILDS = ("overlays/small", "overlays/gpu", "overlays/job", "overlays/train-job", "overlays/runs", "queue")
NAMESPACE = "lab"

OLDEST_KUBECTL = (1, 21)
"""The first one whose kustomize knows components; Debian 12 has 1.20."""


def needs_kubectl() -> None:
    """Skip the test, or all tests of the fixture, where kubectl is missing or cannot build the manifests."""
    needs_packages("kubernetes-client")
    if _version() < OLDEST_KUBECTL:
        pytest.skip(f"needs kubectl {'.'.join(map(str, OLDEST_KUBECTL))}, for kustomize's components")


@functools.cache
def _version() -> tuple[int, ...]:
    command = ["kubectl", "version", "--client", "-o", "json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["clientVersion"]
    return tuple(int(re.sub(r"\D", "", found[part])) for part in ("major", "minor"))


@functools.cache
def built(folder: Path) -> str:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def things(name: str) -> list[dict[str, Any]]:
    """Objects of `overlays/gpu`."""
    return [thing for thing in yaml.safe_load_all(built(ROOT / name)) if thing]


def one(name: str, kind: str) -> dict[str, Any]:
    (found,) = [thing for thing in things(name) if thing["kind"] == kind]
    return found
