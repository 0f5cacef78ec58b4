"""`%cluster slurm` in a real kernel, until the kernel is killed by SIGKILL."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager
from kernels import kernel_manager
from slurm_rig import SlurmRig  # beside this file
from waiting import BROKEN_SECONDS, wait_until
from watched import SHOWN, watched

COUNT = """\
%%torchrun
import os
import torch, torch.distributed as dist
dist.init_process_group()
total = torch.ones(1)
dist.all_reduce(total)
print("total", int(total))
os.environ["SLURM_JOB_ID"]
"""


class Kernel:
    """`run(cell)` returns its output, result and error as one text."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager, self.client = manager, client

    def run(self, cell: str) -> str:
        shown: list[str] = []

        def take(message: dict[str, Any]) -> None:
            content = message["content"]
            shown.append(content.get("text", ""))
            shown.append(content.get("data", {}).get("text/plain", "") if "data" in content else "")
            shown.extend(content.get("traceback", []))

        self.client.execute_interactive(cell, timeout=BROKEN_SECONDS, output_hook=take, allow_stdin=False)
        return re.sub(r"\x1b\[[0-9;]*m", "", "".join(shown))

    def kill(self) -> None:
        assert self.manager.provisioner is not None
        os.kill(self.manager.provisioner.pid, signal.SIGKILL)  # type: ignore[attr-defined]


@pytest.fixture
def kernel(rig: SlurmRig, tmp_path: Path) -> Iterator[Kernel]:
    manager = kernel_manager()
    manager.start_kernel(cwd=str(tmp_path), env={**os.environ, "LABKIT_WORKSPACE": str(tmp_path / "workspace")})
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=BROKEN_SECONDS)
        started = Kernel(manager, client)
        started.run("%load_ext labkit")
        yield started
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_cells_run_on_slurm_until_the_kernel_is_killed(kernel: Kernel, rig: SlurmRig) -> None:
    shown = kernel.run("%cluster slurm --partition lab --nnodes 2 --nproc-per-node 2 --time 10 --dry-run")
    assert "#SBATCH --partition=lab\n#SBATCH --time=10\n" in shown and "srun --jobid=JOB" in shown
    assert rig.jobs() == []
    assert "did you mean %cluster slurm?" in kernel.run("%cluster slrum")
    assert "--gpu is not an option of slurm clusters" in kernel.run("%cluster slurm --gpu a100-80gb")

    shown = kernel.run("%cluster slurm --partition lab --nnodes 2 --nproc-per-node 2 --time 10 --keep 10m")
    assert shown == "slurm: 2 nodes of 2 ranks each, partition lab\n"
    shown = kernel.run(COUNT)
    assert "[0-3] total 4" in shown
    (job,) = rig.jobs()
    assert f"'{job}'" in shown
    assert f"job {job} keeps node1, node2" in kernel.run("%cluster")
    shown = kernel.run("%%torchrun\nimport os\nx = 3\nassert os.environ['RANK'] != '2', x")
    assert "AssertionError on rank 2 of 4" in shown and "----> 4 assert os" in shown
    assert kernel.run("%cluster release") == "the nodes are released\n"
    assert rig.jobs() == []

    assert "never start" in kernel.run("%cluster slurm --nnodes 7\n") + kernel.run("%%torchrun\n0")

    kernel.run("%cluster slurm --nnodes 2 --keep 10m")
    mark = rig.folder / "running"
    kernel.client.execute(f"%%torchrun\nimport pathlib, time\npathlib.Path({str(mark)!r}).touch()\ntime.sleep(600)")
    wait_until(mark.exists)
    kernel.kill()
    wait_until(rig.is_empty)


def jobs(rig: SlurmRig, count: int) -> None:
    """Wait until Slurm has so many jobs: one that is over stays in its list for a moment."""
    wait_until(lambda: len(rig.jobs()) == count, rig.jobs)


def test_live_ranks_hold_their_nodes_until_another_cluster_or_the_kernels_end(kernel: Kernel, rig: SlurmRig) -> None:
    kernel.run("%cluster slurm --nnodes 2 --nproc-per-node 2")
    assert "[0-3] 4.0" in kernel.run("%%ranks\nimport torch\nx = torch.ones(2) * 4\nx[0].item()")
    jobs(rig, 1)
    assert "[0-3] 8.0" in kernel.run("%%ranks\n(x * 2)[0].item()")
    kernel.run("%cluster slurm --nproc-per-node 1")
    jobs(rig, 0)
    shown = kernel.run("%%ranks\n'x' in globals()")
    assert (
        "the cluster has changed: new ranks start; variables of the 4 old ones are lost" in shown and "False" in shown
    )
    jobs(rig, 1)
    rig.ask("scancel", *rig.jobs())
    wait_until(lambda: "alive" not in kernel.run("%ranks"))
    shown = kernel.run("%%ranks\n1")
    assert "all live ranks have died: rank 0 ended with node1: job " in shown and "was cancelled with scancel" in shown
    assert "[0] 1" in shown
    jobs(rig, 1)
    kernel.kill()
    wait_until(rig.is_empty)


def test_the_dashboard_shows_a_training_on_two_nodes_while_it_runs(kernel: Kernel, rig: SlurmRig) -> None:
    kernel.run("%cluster slurm --partition lab --nnodes 2 --nproc-per-node 1")
    assert watched(kernel.run, rig.folder / "log").endswith(SHOWN)
