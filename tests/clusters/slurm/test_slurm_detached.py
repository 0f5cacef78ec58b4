"""`labkit launch --detach` on a real Slurm: batch jobs, which go on without any shell or launcher on this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from slurm_rig import SlurmRig  # beside this file
from waiting import BROKEN_SECONDS, wait_until

from labkit.cli import main
from labkit.clusters.slurm import batch
from labkit.launch.detached import all_jobs

LABKIT = [sys.executable, "-m", "labkit"]
TRAINS = """\
import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
first = int(open("saved").read()) if os.path.exists("saved") else 0
if rank == 0:
    print(size, "ranks from step", first, flush=True)
for step in range(first, 100_000):
    dist.barrier()
    if rank == 0 and size == 2:
        open("saved.new", "w").write(str(step + 1))
        os.rename("saved.new", "saved")
    time.sleep(0.05)
"""


@pytest.fixture
def folder(rig: SlurmRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "trains.py").write_text(TRAINS)
    (tmp_path / "seeds.py").write_text("import sys\nprint('seed', sys.argv[1])\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(batch, "_PATIENCE_SECONDS", BROKEN_SECONDS)
    return tmp_path


def test_a_job_loses_a_node_goes_on_and_is_stopped(
    separate_nodes: SlurmRig, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rig = separate_nodes
    words = ["launch", "trains.py", "--cluster", "slurm", "--nnodes", "1:2", "--max-restarts", "2", "--time", "10"]
    # the shell and all that it has started are gone before the job runs
    shell = subprocess.run([*LABKIT, *words, "--detach"], capture_output=True, text=True)
    assert shell.returncode == 0 and shell.stdout == "trains-1\n", shell.stderr
    (job,) = all_jobs()
    wait_until(lambda: (folder / "saved").exists())
    assert main(["jobs"]) == 0 and "  running on node[1-2]  " in capfd.readouterr().out
    try:
        rig.cut_off(rig.nodes[1])
        with subprocess.Popen([*LABKIT, "logs", "-f", "trains-1"], stdout=subprocess.PIPE, text=True) as attached:
            assert attached.stdout is not None
            lines: list[str] = []
            while "1 ranks from step" not in "".join(lines[-1:]):
                lines.append(attached.stdout.readline())
                assert lines[-1], lines
            assert main(["stop", "trains-1"]) == 0
            last = attached.stdout.read()
        assert attached.returncode == 143 and "terminated" in last
    finally:
        rig.revive(rig.nodes[1])
    starts = [line.partition("] ")[2].split() for line in lines if "ranks from step" in line]
    assert [start[0] for start in starts] == ["2", "1"] and starts[0][-1] == "0" < starts[1][-1]
    assert job.exit_status == 143 and rig.jobs() == []


def test_an_array_waits_and_runs_one_job_for_each_seed(
    rig: SlurmRig, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = rig.ask("sbatch", "--parsable", "--nodes=2", "--exclusive", "--time=5", "--output=/dev/null",
                    "--wrap=sleep 300")  # fmt: skip
    words = ["launch", "seeds.py", "--cluster", "slurm", "--time", "5", "--detach", "--array", "7-8"]
    assert main([*words, "--", "%a"]) == 0
    shown = capfd.readouterr()
    assert shown.out == "seeds-1\n" and "labkit logs -f seeds-1_INDEX" in shown.err
    wait_until(lambda: main(["jobs"]) == 0 and "waits: " in capfd.readouterr().out)
    assert main(["stop", "seeds-1_8"]) == 0
    rig.ask("scancel", other)
    assert main(["logs", "-f", "seeds-1_7"]) == 0
    assert "[0] seed 7\n" in capfd.readouterr().out
    assert main(["logs", "-f", "seeds-1_8"]) == 143
    assert [job.exit_status for job in all_jobs()] == [0, 143]
    assert not list(folder.glob("state/labkit/jobs/*/environment.json"))
    assert main(["logs", "seeds-1"]) == 2
    assert "seeds-1 is an array: give one of its jobs, seeds-1_7 to seeds-1_8" in capfd.readouterr().err
    wait_until(lambda: not rig.jobs())


def test_what_slurm_refuses_is_no_job(rig: SlurmRig, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "seeds.py", "--cluster", "slurm", "--partition", "nowhere", "--detach"]) == 2
    assert "Slurm refuses the job: " in capfd.readouterr().err
    assert all_jobs() == []
