"""cluster/slurm on a real Slurm: its configuration, prolog, epilog and job script, on two nodes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from slurm_rig import Node, SlurmRig  # beside this file
from system_packages import needs_packages
from waiting import wait_until

ROOT = Path(__file__).parents[3]
SITE = ROOT / "cluster" / "slurm"
PROGRAM = ROOT / "cluster" / "kubernetes" / "training" / "program" / "train.py"
NEEDS_CGROUPS = {"ProctrackType", "TaskPlugin", "JobAcctGatherType", "AccountingStorageTRES"}
"""Settings for what nodes that share one machine's kernel, and one without accounting, cannot have."""
USER = 65534
NVIDIA_SMI = """\
#!/bin/bash
# A node of one GPU: `computing` lists its processes, `errors` its memory errors; every call is logged.
echo "$*" >>"$LAB_GPU/calls"
case "$*" in
    *compute-apps*) for pid in $(cat "$LAB_GPU/computing"); do [ ! -e "/proc/$pid" ] || echo "$pid"; done ;;
    *ecc*) cat "$LAB_GPU/errors" ;;
esac
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmRig]:
    """A Slurm with the site's settings; only prolog and epilog get a driver, which this machine does not have."""
    needs_packages("munge", "slurmctld", "slurmd", "slurm-client")
    folder = tmp_path_factory.mktemp("site")
    driver = folder / "driver"
    driver.mkdir()
    (driver / "nvidia-smi").write_text(NVIDIA_SMI)
    (driver / "nvidia-smi").chmod(0o755)
    for name in ("computing", "errors", "calls"):
        (driver / name).touch()
    settings = ["SchedulerParameters=bf_interval=1,sched_min_interval=10000"]
    for line in (SITE / "lab.conf").read_text().splitlines():
        name, _, value = line.partition("=")
        if name in ("Prolog", "Epilog"):
            script = folder / name.lower()
            variables = f"export LAB_SCRATCH={folder}/scratch LAB_PUBLIC_FOLDERS={folder}/public"
            variables += f" LAB_GPU={driver} SLURM_CONF={folder}/slurm.conf"
            path = f"export PATH={driver}:$PATH"
            script.write_text(f"#!/bin/bash\n{variables}\n{path}\nexec {shlex.quote(str(SITE / Path(value).name))}\n")
            script.chmod(0o755)
            settings.append(f"{name}={script}")
        elif line and not line.startswith("#") and name not in NEEDS_CGROUPS:
            settings.append(line)
    for name in ("scratch", "public"):
        (folder / name).mkdir()
    with SlurmRig(folder, settings="\n".join(settings) + "\n") as rig:
        if not rig.namespaces:
            pytest.skip("needs root")  # an epilog ends all of a user's processes on a node
        yield rig


def _submit(rig: SlurmRig, *words: str) -> str:
    answer = rig.ask("sbatch", "--parsable", *words)
    assert answer.isdigit(), answer
    return answer


def _state(rig: SlurmRig, job: str) -> str:
    return rig.ask("squeue", "--noheader", "--format=%T", f"--jobs={job}")


def _node_state(rig: SlurmRig, node: Node) -> str:
    return rig.ask("sinfo", "--noheader", "--Node", f"--nodes={node.name}", "--partition=train", "--format=%T")


def _processes(rig: SlurmRig, node: Node, word: str) -> list[str]:
    return [command for command in rig.processes_on(node) if word in command]


def test_every_setting_is_one_that_slurm_knows(site: SlurmRig, tmp_path: Path) -> None:
    """Also those that this machine cannot have: Slurm's own parser reads the file, and refuses a misspelt one."""

    def read(text: str) -> str:
        file = tmp_path / "slurm.conf"
        own = (site.folder / "slurm.conf").read_text().split("SchedulerParameters=bf_interval=1,sched_min")[0]
        file.write_text(f"{own}\n{text}")
        done = subprocess.run(
            ["scontrol", "show", "config"], env={**os.environ, "SLURM_CONF": str(file)}, capture_output=True, text=True
        )
        return done.stdout + done.stderr

    text = (SITE / "lab.conf").read_text()
    assert "arsing" not in read(text), read(text)
    assert "arsing error at unrecognized key: KillWaiting" in read(text.replace("KillWait=", "KillWaiting="))
    partitions = site.ask("sinfo", "--noheader", "--format=%R %l").splitlines()
    assert {"lesson 1:00:00", "train 1-00:00:00"} <= {re.sub(" +", " ", line) for line in partitions}


def test_a_job_leaves_no_process_and_no_file_on_its_node(site: SlurmRig) -> None:
    node = site.nodes[0]
    public, scratch = site.folder / "public", site.folder / "scratch"
    site.folder.parent.chmod(0o755)
    for folder in (site.folder, scratch):
        folder.chmod(0o755)
    public.chmod(0o1777)
    (public / "of-somebody-else").touch()
    mark = site.folder / "public" / "mark"
    # Slurm itself finds what a job has started; this one came over ssh
    site.start_on(node, USER, "sleep", "98765")
    wait_until(lambda: _processes(site, node, "sleep 98765"))
    script = f"touch {mark}; touch {scratch}/job_$SLURM_JOB_ID/mine; cp {mark} {mark}-2"
    job = _submit(
        site, f"--uid={USER}", "--partition=lesson", f"--nodelist={node.name}", "--gpus-per-node=1", "--mem=100",
        "--output=/dev/null", "--chdir=/", "--wrap", script,
    )  # fmt: skip
    wait_until(lambda: not _state(site, job))
    wait_until(lambda: not _processes(site, node, "sleep 98765"))
    assert [file.name for file in public.iterdir()] == ["of-somebody-else"]
    assert not list(scratch.iterdir())
    calls = (site.folder / "driver" / "calls").read_text()
    assert "--id=0 --query-gpu=index" in calls and "--id=0 --reset-gpu-clocks" in calls
    assert (
        site.ask("sinfo", "--noheader", "--Node", f"--nodes={node.name}", "--partition=train", "--format=%T") == "idle"
    )


def test_a_process_left_on_a_gpu_keeps_the_next_job_from_it(site: SlurmRig) -> None:
    """The prolog refuses, the node is drained, and the job goes back into the queue, to run elsewhere."""
    node, driver = site.nodes[1], site.folder / "driver"
    (driver / "computing").write_text("1\n")  # the node's first process, which is there
    try:
        job = _submit(
            site, f"--uid={USER}", "--partition=lesson", f"--nodelist={node.name}", "--gpus-per-node=1", "--mem=100",
            "--output=/dev/null", "--chdir=/", "--wrap", "sleep 1",
        )  # fmt: skip
        wait_until(lambda: "drain" in _node_state(site, node))
        wait_until(lambda: _state(site, job) == "PENDING")
    finally:
        (driver / "computing").write_text("")
    site.ask("scancel", job)
    wait_until(lambda: not _state(site, job))
    site.ask("scontrol", "update", f"nodename={node.name}", "state=resume")


def test_torchrun_on_two_nodes_is_queued_again_before_its_time_limit_and_continues(
    site: SlurmRig, tmp_path: Path
) -> None:
    log = tmp_path / "job.out"
    # what a login shell on the node has
    path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}" if (ROOT / ".venv").exists() else os.environ["PATH"]
    environment = f"--export=ALL,PATH={path},NPROC_PER_NODE=1"
    job = _submit(
        site, "--partition=train", "--gpus-per-node=0", "--cpus-per-task=1", "--mem=1000", f"--output={log}",
        environment, str(SITE / "train.sbatch"), str(PROGRAM), f"--checkpoints={tmp_path}", "--metrics-port=0",
        "--steps=100000", "--save-every=10", "--seconds-per-step=0.05",
    )  # fmt: skip

    def printed() -> str:
        return log.read_text() if log.exists() else ""

    wait_until(lambda: "step 12 " in printed(), printed)
    # as Slurm does before the time limit
    site.ask("scancel", "--batch", "--signal=USR1", job)
    wait_until(lambda: "is queued again" in printed(), printed)
    wait_until(lambda: _state(site, job) == "PENDING", printed)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"]
    # else it waits two minutes, for the credentials of its first start to expire
    site.ask("scontrol", "update", f"jobid={job}", "starttime=now")
    again = f"training from step {saved} on 2 ranks"
    wait_until(lambda: again in printed(), lambda: printed() + site.ask("squeue", "--long"))
    wait_until(lambda: f"step {saved + 1} " in printed().split(again)[1], printed)
    assert saved >= 10 and saved % 10 == 0 and "training from step 0 on 2 ranks" in printed()
    site.ask("scancel", job)
    wait_until(lambda: not _state(site, job))


def test_scripts_and_settings_name_each_other() -> None:
    text = (SITE / "lab.conf").read_text()
    for name in ("lab-prolog", "lab-epilog"):
        assert f"/etc/slurm/{name}" in text
        assert os.access(SITE / name, os.X_OK)
    assert shutil.which("bash")
    for script in ("lab-prolog", "lab-epilog", "train.sbatch"):
        assert subprocess.run(["bash", "-n", SITE / script]).returncode == 0
