"""Live ranks on the nodes of a real Slurm: their job is held between cells, and no longer."""

from __future__ import annotations

import time

import pytest
from slurm_rig import SlurmRig  # beside this file
from waiting import BROKEN_SECONDS, wait_until

from labkit import InvalidJob, Job, Run, slurm
from labkit.clusters import State
from labkit.clusters.live import LiveRanks
from labkit.clusters.slurm import steps

HEAD = "import os, torch, torch.distributed as dist\ndist.init_process_group()\nrank = dist.get_rank()\n"


def test_ranks_stay_between_cells_and_hold_their_job(rig: SlurmRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SILENCE_SECONDS", 5.0)
    cluster = slurm(nnodes=2, nproc_per_node=2)
    states: list[State] = []
    live = LiveRanks(cluster, Job(source=""), states.append)
    try:
        assert "starting" in {state.phase for state in states}

        def on_all(source: str) -> Run:
            return live.run(Job(source=source, filename="Cell In[4]", timeout=BROKEN_SECONDS))[0].raise_if_failed()

        assert on_all(HEAD + "x = torch.ones(2) * rank\ndist.get_world_size()").values == [4] * 4
        (job,) = rig.jobs()
        # the agents receive heartbeats even while no cell runs
        time.sleep(6)
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


def test_live_ranks_whose_job_is_gone_say_so_at_the_next_cell(rig: SlurmRig) -> None:
    live = LiveRanks(slurm(nproc_per_node=2), Job(source=""))
    (job,) = rig.jobs()
    rig.ask("scancel", job)
    wait_until(lambda: not live.alive)
    with pytest.raises(InvalidJob, match=f"ranks 0-1 ended with node1: job {job} was cancelled with scancel"):
        live.run(Job(source="0"))
    live.close()
