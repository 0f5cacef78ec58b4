"""System packages that are missing are named before CI begins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import system_packages

ROOT = Path(__file__).resolve().parent.parent.parent


def lab_test(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the tests' runner where PATH has no program; the system's other folders may have some."""
    command = [sys.executable, ROOT / "tests/runner", *arguments]
    variables = {**os.environ, "PATH": "/nosuch", **environment}
    return subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True)


def test_ci_names_all_missing_packages_before_it_begins() -> None:
    done = lab_test("--merge", CI="true")
    assert (done.returncode, done.stdout) == (2, "")
    names, command = done.stderr.splitlines()
    missing = names.partition(" here: ")[2].partition(". Under CI=true")[0].split(", ")
    assert {"chromium", "kubernetes-client", "openssl"} <= set(missing) <= {*system_packages.PROGRAMS, "bubblewrap"}
    assert command.strip() == system_packages.command_to_install(missing)
    assert lab_test("--install-command").stdout == command.strip()


def test_prometheus_comes_without_what_it_recommends() -> None:
    command = system_packages.command_to_install(["munge", "prometheus"])
    assert command == "apt-get update && apt-get install -y munge prometheus prometheus-node-exporter-"
