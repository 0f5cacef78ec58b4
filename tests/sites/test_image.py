"""The images of grading and of notebooks, from each step of their Containerfiles, without a registry, and at work.

Minutes of a core, most of them pip's; gigabytes, which are removed.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from overlays import needs_overlays
from waiting import BROKEN_SECONDS

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "cluster" / "containers"
sys.path.insert(0, str(CONTAINERS / "without_registry"))
from containerfile import stages  # noqa: E402


def index_of_cpu_builds() -> list[str]:
    """Options for a torch without CUDA: pip's own index where its torch has none, as `./lab` decides, too."""
    torch = (ROOT / "requirements/torch.txt").read_text().strip()
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


def output_of(name: str, into: Path, commands: list[str]) -> str:
    """Build an image, start it, run commands in it; return what was printed."""
    builder = CONTAINERS / "without_registry" / "build.py"
    command = [sys.executable, builder, CONTAINERS / f"{name}.Containerfile", "--context", ROOT, "--into", into]
    command += ["--patience", f"{BROKEN_SECONDS:g}"]
    command += index_of_cpu_builds()
    for each in commands:
        command += ["--run", f"{{ {each}\n}} 2>&1"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    finally:
        shutil.rmtree(into, ignore_errors=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(3600)  # pip alone takes minutes where other tests have the cores
def test_a_submission_is_judged_in_the_image_of_grading(tmp_path: Path) -> None:
    needs_overlays(tmp_path)
    look = "id -u; ls -A /run/host /run/context; touch /opt/lab/new || true"
    shown = output_of("grading", tmp_path / "image", [look, "labkit doctor", "labkit demo"])
    # nobody special, without this machine's files and settings, on a root that is read-only
    first, doctor, demo = re.split(r"^\$ .*\n.*\n", shown, flags=re.MULTILINE)[1:]
    assert first.splitlines()[:-2] == [
        "1000", "/run/context:", "", "/run/host:", "touch: cannot touch '/opt/lab/new': Read-only file system",
    ]  # fmt: skip
    assert re.search(r"^sandbox +ok +bubblewrap", doctor, re.MULTILINE), doctor
    assert "[0-3] the sum is 6" in demo  # %%torchrun on four ranks
    marks = re.findall(r"^│ (\w+) +│ \w+ +│ \w+ +│ +(\d+) │", demo, re.MULTILINE)
    assert marks == [("right", "25"), ("wrong", "16")], demo
    assert "without" not in demo.partition("release, submissions")[2].partition("done")[0]  # judged in a sandbox


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_a_learner_works_in_the_image_of_notebooks(tmp_path: Path) -> None:
    """Its server, a notebook of it, and four ranks; solutions are nowhere in it."""
    needs_overlays(tmp_path)
    tests = Path(__file__).parents[1]
    names = ("sites/notebooks_visitor.py", "autograder/classroom_person.py", "plugins/waiting.py")
    files = [f"cat >{file.name} <<'END'\n{file.read_text()}\nEND" for file in (tests / name for name in names)]
    command = stages((CONTAINERS / "notebooks.Containerfile").read_text(), {})[-1].last("CMD")
    assert command is not None
    visit = f"python notebooks_visitor.py {shlex.join(command.words)}"
    shown = output_of("notebooks", tmp_path / "image", [*files, "labkit doctor", visit])
    found = json.loads(next(line for line in shown.splitlines() if line.startswith('{"without')))
    assert found == {
        "without the token": 403, "page": "JupyterLab", "exercise cells": 1, "with solutions": [],
        "ranks": ["[0-3] the sum is 10"], "user": 1000, "grader": False,
    }  # fmt: skip
    assert re.search(r"^local cluster \(gloo\) +ok", shown, re.MULTILINE), shown
