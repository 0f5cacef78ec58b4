"""`%cluster kubernetes` as a learner types it, on a stand-in cluster."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import yaml
from standin_cluster import StandInCluster

_NEXT = "=== next cell ==="
_NOTEBOOK = f"""
import sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(colors="nocolor")
shell.run_line_magic("load_ext", "labkit")
for cell in sys.argv[1:]:
    result = shell.run_cell(cell)
    if result.result is not None:
        print(result.result)
    print("{_NEXT}", flush=True)
"""


def _notebook(*cells: str) -> list[str]:
    """Return what each of these cells shows, with errors, in its own IPython."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_NOTEBOOK), *cells],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.split(_NEXT)[: len(cells)]


def test_a_learner_chooses_kubernetes_and_runs_a_cell(standin: StandInCluster) -> None:
    """One notebook, to save time: invalid requests, one line each; a dry run; then a cell in pods."""
    cell = "%%torchrun\nimport torch.distributed as dist\ndist.init_process_group()\nprint('hello')\ndist.get_rank()"
    asked = {
        "%cluster kubernetes --nnodes 2": "UsageError: say which container image the ranks run in: --image",
        "%cluster kubernetes --image lab:1 --partition gpu": "--partition is not an option of kubernetes clusters",
        "%cluster local --image lab:1": "--image is not an option of local clusters",
        "%cluster kubernetes --image lab:1 --context gone": "UsageError: the Kubernetes API at https://127.0.0.1:1 ",
        "%cluster kubernetes --nnodes 4 --gpus-per-node 8 --image lab:1 --memory 64Gi --dry-run": "completions: 4",
        # none of these was chosen
        "%cluster": "local: 2 processes",
        "%cluster kubernetes --nnodes 1 --image lab:nosuch": "a Job in namespace lab of https://127.0.0.1:",
        "%%torchrun\n1": "UsageError: pod 0 of 1 cannot start: the image lab:nosuch cannot be had",
        "%cluster kubernetes --nnodes 1 -n 2 --image lab:1 --timeout 5m": "a run is stopped after 300 s",
        "%%ranks\n1": "UsageError: ranks cannot stay alive between cells yet on this cluster (kubernetes: ",
        cell: "[0-1] hello",
    }
    shown = _notebook(*asked)
    for line, told, found in zip(asked, asked.values(), shown, strict=True):
        assert told in found, f"{line}:\n{found}"
        assert "Traceback" not in found
    secret, service, job = yaml.safe_load_all(shown[4])
    assert [thing["kind"] for thing in (secret, service, job)] == ["Secret", "Service", "Job"]
    assert shown[-1].rstrip().endswith("[0] 0\n[1] 1")
