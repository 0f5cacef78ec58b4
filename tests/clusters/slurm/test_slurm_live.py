"""Live ranks on the nodes of a real Slurm: their job is held between cells, and no longer."""

from __future__ import annotations

import sys

import pytest
from clocks import ManualClock
from slurm_rig import SlurmRig  # beside this file
from waiting import BROKEN_SECONDS, wait_until

from labkit import InvalidJob, Job, Run, slurm
from labkit.clusters import State
from labkit.clusters.live import LiveRanks
from labkit.clusters.slurm import steps
from labkit.clusters.slurm.allocation import Allocation
from labkit.clusters.slurm.script import ResourceRequest

REPEATS = "import sys\nfor line in sys.stdin:\n    print(repr(line), flush=True)"
HEAD = "import os, torch, torch.distributed as dist\ndist.init_process_group()\nrank = dist.get_rank()\n"


def test_ranks_stay_between_cells_and_hold_their_job(rig: SlurmRig) -> None:
    cluster = slurm(nnodes=2, nproc_per_node=2)
    states: list[State] = []
    live = LiveRanks(cluster, Job(source=""), states.append)
    try:
        assert "starting" in {state.phase for state in states}

        def on_all(source: str) -> Run:
            return live.run(Job(source=source, filename="Cell In[4]", timeout=BROKEN_SECONDS))[0].raise_if_failed()

        assert on_all(HEAD + "x = torch.ones(2) * rank\ndist.get_world_size()").values == [4] * 4
        (job,) = rig.jobs()
        source = "dist.all_reduce(x)\nx[0].item(), os.environ['SLURM_JOB_ID'], os.environ['GROUP_RANK']"
        assert on_all(source).values == [(6.0, job, node) for node in "0011"]
        # a concurrent run has its own ranks on the same nodes, and does not release them
        assert cluster.run(Job(source="import os\nos.environ['SLURM_JOB_ID']")).values == [job] * 4
        with pytest.raises(InvalidJob, match=f"live ranks hold job {job}, .* %ranks stop"):
            cluster.run(Job(source="0", nproc_per_node=1))
        assert on_all("x[0].item()").values == [6.0] * 4
    finally:
        live.close()
    assert rig.jobs() == []


def test_agents_hear_of_the_notebook_even_while_no_cell_runs(rig: SlurmRig) -> None:
    """Else they would end when it has been silent for too long."""
    clock, heard = ManualClock(), list[tuple[int, str]]()
    allocation = Allocation(ResourceRequest(nnodes=2, nproc_per_node=1))
    try:
        allocation.wait()
        agents = steps.Steps(allocation.job_id, allocation.nodes, [sys.executable, "-c", REPEATS], clock)
        agents.begin(lambda node, line: heard.append((node, line)), lambda step: None)
        for count in range(3):
            agents.writer(0)("a line\n")  # wakes the thread that looks at the clock
            wait_until(lambda count=count: heard.count((0, repr("a line\n"))) == count + 1, lambda: heard)
            wait_until(lambda count=count: heard.count((1, repr("\n"))) == count, lambda: heard)
            clock.advance(steps.SILENCE_SECONDS / 2)
        agents.close()
    finally:
        allocation.release()


def test_live_ranks_whose_job_is_gone_say_so_at_the_next_cell(rig: SlurmRig) -> None:
    live = LiveRanks(slurm(nproc_per_node=2), Job(source=""))
    (job,) = rig.jobs()
    rig.ask("scancel", job)
    wait_until(lambda: not live.alive)
    with pytest.raises(InvalidJob, match=f"ranks 0-1 ended with node1: job {job} was cancelled with scancel"):
        live.run(Job(source="0"))
    live.close()
