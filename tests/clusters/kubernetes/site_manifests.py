"""The manifests of cluster/kubernetes, built by the real kubectl."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3] / "cluster" / "kubernetes"
BUILDS = ("overlays/small", "overlays/gpu", "overlays/job", "overlays/train-job", "queue")
NAMESPACE = "lab"


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
