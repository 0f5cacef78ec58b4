"""The image of grading, from each step of its Containerfile, without a registry; and a submission judged in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from overlays import needs_overlays

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "cluster" / "containers"


def index_of_cpu_builds() -> list[str]:
    """Options for a torch without CUDA: pip's own index where its torch has none, as `./lab` decides, too."""
    (torch,) = re.findall(r"^torch==\S+", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    ask = ["--dry-run", "--no-deps", "--ignore-installed", "--use-feature=fast-deps", "--report=-", "--quiet", torch]
    report = subprocess.run([sys.executable, "-m", "pip", "install", *ask], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(report.stdout)
    needed = found["install"][0]["metadata"].get("requires_dist", [])
    if any(re.match("nvidia|cuda", each) for each in needed):
        return []
    # the default that pip's help names is the configured one
    text = subprocess.run([sys.executable, "-m", "pip", "install", "--help"], capture_output=True, text=True).stdout
    own = re.search(r"--index-url <url>.*?\(default\s+(\S+?)\)", text, re.DOTALL)
    assert own is not None, text
    return ["--build-arg", f"CPU_INDEX={own[1]}"]


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)  # pip alone takes minutes where other tests have the cores
def test_a_submission_is_judged_in_the_image_of_grading(tmp_path: Path) -> None:
    """Minutes of a core, most of them pip's; gigabytes, which are removed."""
    needs_overlays(tmp_path)
    into = tmp_path / "image"
    builder = CONTAINERS / "without_registry" / "build.py"
    command = [sys.executable, builder, CONTAINERS / "notebooks.Containerfile", "--target", "grading"]
    command += ["--context", ROOT, "--into", into, *index_of_cpu_builds()]
    for each in ("id -u; ls -A /run/host /run/context; touch /opt/lab/new || true", "labkit doctor", "labkit demo"):
        command += ["--run", f"{{ {each}; }} 2>&1"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    finally:
        shutil.rmtree(into, ignore_errors=True)
    shown = done.stdout
    assert done.returncode == 0, shown[-6000:] + done.stderr[-6000:]
    # nobody special, without this machine's files and settings, on a root that is read-only
    first, doctor, demo = re.split(r"^\$ .*\n", shown, flags=re.MULTILINE)[1:]
    assert first.splitlines()[:-2] == [
        "1000", "/run/context:", "", "/run/host:", "touch: cannot touch '/opt/lab/new': Read-only file system",
    ]  # fmt: skip
    assert re.search(r"^sandbox +ok +bubblewrap", doctor, re.MULTILINE), doctor
    assert "[0-3] the sum is 6" in demo  # %%torchrun on four ranks
    marks = re.findall(r"^│ (\w+) +│ \w+ +│ \w+ +│ +(\d+) │", demo, re.MULTILINE)
    assert marks == [("right", "25"), ("wrong", "16")], demo
    assert "without" not in demo.partition("release, submissions")[2].partition("done")[0]  # judged in a sandbox
