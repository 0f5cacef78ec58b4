"""Whole notebooks, run from top to bottom as nbclient, nbval and nbgrader do it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook
from waiting import BROKEN_SECONDS


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_WORKSPACE", str(tmp_path / "workspace"))

    def make(*cells: str) -> NotebookClient:
        notebook = new_notebook(cells=[new_code_cell(cell) for cell in ("%load_ext labkit", *cells)])
        return NotebookClient(notebook, timeout=int(BROKEN_SECONDS), resources={"metadata": {"path": str(tmp_path)}})

    return make


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%%torchrun\nraise ValueError('stop here')", "RankFailed"),
        ("%%torchrun -n 0\n1", None),
        ("%%torchrun\nx = =", "SyntaxError"),
    ],
)
def test_a_cell_that_fails_stops_the_notebook(client, cell, message):
    running = client(cell, "print('never')")
    with pytest.raises(CellExecutionError) as failure:
        running.execute()
    if message:
        assert message in re.sub(r"\x1b\[[0-9;]*m", "", str(failure.value))
    assert not running.nb.cells[-1].outputs


def test_a_stored_notebook_compares_equal_when_run_again(client, tmp_path):
    running = client(
        "%cluster local --nproc-per-node 4",
        "%%torchrun -o run\nimport os, time\nimport torch.distributed as dist\ndist.init_process_group()\n"
        "dist.barrier()\nprint('rank', os.environ['RANK'])\nprint('slow')\ntime.sleep(0.8)\n1.5",
        "run.plot()",
        "from labkit.notebook import step_through\nfrom labkit.plots import ring_rounds\n"
        "step_through(lambda round: ring_rounds(3, round), last=4)",
        "%question tree_rounds",
        "%cluster virtual --nproc-per-node 4",
        "%%torchrun\nimport torch.distributed as dist\ndist.init_process_group()\n"
        "print('rank', dist.get_rank())\ndist.barrier()\nprint('after')",
    )
    running.execute()
    printed = running.nb.cells[2].outputs[0].text
    assert printed == "[0] rank 0\n[1] rank 1\n[2] rank 2\n[3] rank 3\n[0-3] slow\n"
    path = Path(tmp_path) / "stored.ipynb"
    nbformat.write(running.nb, path)
    rules = Path(__file__).parents[1] / "nbval.cfg"
    nbval = ["--nbval", f"--nbval-sanitize-with={rules}", str(path), f"--rootdir={tmp_path}"]
    compared = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *nbval],
        env={**os.environ, "LABKIT_WORKSPACE": str(tmp_path / "workspace")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert compared.returncode == 0, compared.stdout
