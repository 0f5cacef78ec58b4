"""What the builder and the runner of cluster/containers/without_registry need of a machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from system_packages import needs_packages


def needs_overlays(folder: Path) -> None:
    """Skip the test unless this is root on a Debian machine that has overlayfs and lets root use it."""
    if os.geteuid() != 0 or shutil.which("dpkg-query") is None or not _may_mount(folder):
        pytest.skip("needs root")
    needs_packages("iproute2")


def _may_mount(folder: Path) -> bool:
    for name in ("lower", "upper", "work", "merged"):
        (folder / name).mkdir()
    options = ",".join(f"{name}dir={folder}/{name}" for name in ("lower", "upper", "work"))
    trial = ["unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", options, str(folder / "merged")]
    return subprocess.run(trial, capture_output=True).returncode == 0
