"""`./lab demo` as a newcomer sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import nbformat
import pytest

from labkit import catalogue

RUN = """
import runpy, sys
import psutil
from labkit.linux.prctl import adopt_orphans

adopt_orphans()  # so that whatever is left behind becomes a child of this process
sys.argv[1:] = ["demo"]
try:
    runpy.run_module("labkit", run_name="__main__")
except SystemExit as end:
    assert end.code == 0
left = psutil.Process().children(recursive=True)
assert not psutil.wait_procs(left, timeout=300)[1], left
"""


@pytest.mark.slow
def test_the_demo_goes_from_a_cell_to_the_gradebook(tmp_path: Path) -> None:
    for part in ("solutions", "templates", "notebooks", "autograder"):
        (tmp_path / part).symlink_to(catalogue.root() / part)
    environment = {**os.environ, "LABKIT_ROOT": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", RUN], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    for text in ("the sum is 6", "25 of 25 points", "nbgrader autograde", "Gradebook: phase3_multi_node"):
        assert text in done.stdout
    rows = [cells for line in done.stdout.splitlines() if len(cells := line.split("│")) > 5]
    assert {row[1].strip(): row[4].strip() for row in rows} == {"right": "25", "wrong": "16"}
    results = tmp_path / "demo"
    assert matplotlib.image.imread(results / "timeline.png").shape[1] > 500
    assert nbformat.read(results / "learner.ipynb", as_version=4).cells[2].outputs
    assert "16 of 25 points" in (results / "feedback-wrong.html").read_text()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_demo_goes_through_where_no_sandbox_can_be_made(tmp_path: Path) -> None:
    for part in ("solutions", "templates", "notebooks", "autograder"):
        (tmp_path / part).symlink_to(catalogue.root() / part)
    forbids = Path(__file__).with_name("without_namespaces.py")
    command = [sys.executable, forbids, sys.executable, "-m", "labkit", "demo"]
    environment = {**os.environ, "LABKIT_ROOT": str(tmp_path), "COLUMNS": "200"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No sandbox for learners' code" in done.stdout and "graded without one" in done.stdout
    assert "2 of 25 points are left out: bytes on the network cannot be counted" in done.stdout
    rows = [cells for line in done.stdout.splitlines() if len(cells := line.split("│")) > 5]
    # 16 of the other 23
    assert {row[1].strip(): row[4].strip() for row in rows} == {"right": "25", "wrong": "17.39"}
