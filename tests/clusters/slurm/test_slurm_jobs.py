"""A run's job in Slurm's queue: what is reported while it waits, and that it ends with its owner."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slurm_rig import SlurmRig  # beside this file
from waiting import BROKEN_SECONDS, wait_until

from labkit import InvalidJob, Job, RankFailed, slurm
from labkit.clusters import State
from labkit.clusters.slurm.clients import JobState
from labkit.linux.processes import descendants

WAIT = "import time\nprint('here', flush=True)\ntime.sleep(600)"


class Interrupt:
    """Ctrl-C as soon as a rank prints, or the job's state contains `word`."""

    def __init__(self, word: str = "") -> None:
        self.word = word
        self.states: list[State] = []

    def output(self, rank: int, stream: str, text: str) -> None:
        raise KeyboardInterrupt

    def state(self, state: State) -> None:
        self.states.append(state)
        if self.word and self.word in state.text:
            raise KeyboardInterrupt


def test_an_interrupt_cancels_the_job(rig: SlurmRig) -> None:
    interrupt = Interrupt()
    with pytest.raises(KeyboardInterrupt):
        slurm(nproc_per_node=1).run(Job(source=WAIT), interrupt.output, interrupt.state)
    assert rig.jobs() == []
    assert {state.phase for state in interrupt.states} >= {"starting", "running"}
    wait_until(rig.is_empty)


def test_a_job_that_waits_says_for_what_and_is_cancelled(rig: SlurmRig) -> None:
    first = rig.ask(
        "sbatch", "--parsable", "--nodes=2", "--exclusive", "--time=5", "--output=/dev/null", "--wrap=sleep 300"
    )
    second = rig.ask(
        "sbatch", "--parsable", "--nodes=2", "--exclusive", "--time=5", "--output=/dev/null", "--wrap=sleep 300"
    )
    interrupt = Interrupt("may start at")
    with pytest.raises(KeyboardInterrupt):
        slurm(nnodes=2, time="5").run(Job(source="0"), None, interrupt.state)
    last = interrupt.states[-1]
    assert last.phase == "queued"
    why = "Priority, other jobs come first|Resources, for nodes to become free"
    assert re.match(rf"job \d+ waits: ({why}); about 2nd in the queue; may start at ", last.text)
    assert rig.jobs() == [second, first]
    rig.clear()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "lba"}, "Slurm refuses the job: invalid partition specified: lba"),
        ({"constraint": "h100"}, "Slurm refuses the job: Invalid feature specification"),
        ({"gpus_per_node": 9}, r"can never start: the partition has fewer nodes, smaller ones|Requested node config"),
        ({"sbatch_options": ["--nonsense"]}, "Slurm refuses the job: unrecognized option '--nonsense'"),
        ({"time": "soon"}, "Slurm refuses the job: Invalid --time specification"),
        (
            {"partition": "closed", "account": "art"},
            r"can never start: Job's account .* this partition .*allows physics",
        ),
        ({"nnodes": 3}, r"can never start: the partition has fewer nodes.*\(Part"),
        ({"nnodes": 3}, r"This cluster has: lab: 2 nodes of 4 CPUs, gpu:2, time limit 30:00"),
    ],
)
def test_what_slurm_refuses_is_told_with_its_reason(rig: SlurmRig, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        slurm(**options).run(Job(source="0"))
    assert rig.jobs() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nnodes": 0}, "nnodes must be a whole number of at least 1, got 0"),
        ({"gpus_per_node": 1.5}, "gpus_per_node must be a whole number of at least 1, got 1.5"),
        ({"partition": "a\n#SBATCH --account=b"}, "partition must be a text of one line"),
        ({"sbatch_options": ["rm -rf"]}, r"sbatch_options must be options of sbatch \(--name=value\), got 'rm -rf'"),
        ({"keep": -1}, "keep must be 0 or more seconds, got -1"),
    ],
)
def test_bad_options_are_named(rig: SlurmRig, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        slurm(**options)


def test_where_there_is_no_slurm_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidJob, match="Slurm is not installed here: there is no sbatch"):
        slurm()


def test_where_no_cluster_is_configured_it_is_said(
    rig: SlurmRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "slurm.conf").touch()
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    with pytest.raises(InvalidJob, match=r"Slurm's commands are installed here, but do not know of a cluster"):
        slurm().run(Job(source="0"))


def test_a_dry_run_is_what_slurm_would_take(rig: SlurmRig) -> None:
    options: dict[str, Any] = {"partition": "lab", "time": "10", "gpus_per_node": 1, "cpus_per_task": 2}
    text = slurm(nnodes=2, nproc_per_node=2, sbatch_options=["--comment=two words"], **options).dry_run()
    script = text.partition("\n# and each node")[0].partition("\n")[2]
    directives = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
    assert directives == [
        *("--job-name=labkit", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=2", "--gpus-per-node=1"),
        *("--partition=lab", "--time=10", "'--comment=two words'", "--no-requeue"),
        *("--no-kill", "--output=/dev/null"),
    ]
    tried = subprocess.run(["sbatch", "--test-only"], input=script, text=True, capture_output=True)
    assert tried.returncode == 0 and "to start at" in tried.stderr
    command = text.splitlines()[-1]
    assert command.startswith("srun --jobid=JOB --overlap --nodes=1 --ntasks=1 --relative=0 ")
    assert command.endswith("-P -m labkit.clusters.agent")


def test_kept_nodes_are_given_back_when_nobody_used_them(rig: SlurmRig) -> None:
    cluster = slurm(nproc_per_node=1, keep=0.5)
    assert cluster.run(Job(source="1")).values == [1]
    wait_until(rig.is_empty)
    assert "keeps" not in cluster.describe()


def test_another_number_of_ranks_is_another_job(rig: SlurmRig) -> None:
    cluster = slurm(nproc_per_node=1, keep=600)
    source = "import os\nos.environ['SLURM_JOB_ID']"
    (first,) = cluster.run(Job(source=source)).values
    second = cluster.run(Job(source=source, nproc_per_node=2)).values
    assert len(set(second)) == 1 and first not in second
    assert cluster.release()
    assert not cluster.release()


def test_a_job_that_is_cancelled_from_outside_says_so(rig: SlurmRig) -> None:
    def cancel(rank: int, stream: str, text: str) -> None:
        rig.ask("scancel", *rig.jobs())

    run = slurm(nproc_per_node=2).run(Job(source=WAIT), cancel)
    assert "node1 with ranks 0-1 was lost: job " in run.stopped
    assert "was cancelled with scancel, or by an administrator" in run.stopped


def test_a_node_that_dies_is_named_with_its_ranks_and_slurms_reason(separate_nodes: SlurmRig) -> None:
    rig = separate_nodes
    printed = []

    def cut_off(rank: int, stream: str, text: str) -> None:
        printed.append(rank)
        if len(printed) == 4:
            rig.cut_off(rig.nodes[1])

    source = "import torch.distributed as dist\ndist.init_process_group()\nprint('here', flush=True)\n"
    source += "while True:\n    dist.barrier()"
    try:
        run = slurm(nnodes=2, nproc_per_node=2).run(Job(source=source, hang_timeout=None), cut_off)
    finally:
        rig.revive(rig.nodes[1])
    assert "node2 with ranks 2-3 was lost: Slurm says that the node is not responding" in run.stopped
    with pytest.raises(RankFailed):
        run.raise_if_failed()
    assert rig.jobs() == []


def test_a_node_that_dies_is_done_without_where_fewer_will_do(separate_nodes: SlurmRig) -> None:
    rig = separate_nodes

    def cut_off(rank: int, stream: str, text: str) -> None:
        if rank == 3:
            rig.cut_off(rig.nodes[1])

    source = "import os, time, torch.distributed as dist\ndist.init_process_group()\nprint('here', flush=True)\n"
    source += "while dist.get_world_size() == 4 or os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
    source += "    time.sleep(0.01)\n    dist.barrier()\n"
    source += "dist.barrier()\n(dist.get_rank(), dist.get_world_size())"
    cluster = slurm(nnodes=2, nproc_per_node=2, keep=600)
    try:
        job = Job(source=source, hang_timeout=None, min_nnodes=1, max_restarts=2, timeout=BROKEN_SECONDS)
        run = cluster.run(job, cut_off)
    finally:
        rig.revive(rig.nodes[1])
    assert run.raise_if_failed().values == [(0, 2), (1, 2)]
    assert "restarted once after node2 was lost" in run.notes[-1]
    assert not cluster.release(), "nodes of which one is lost are not kept"
    assert rig.jobs() == []


@pytest.mark.parametrize(
    ("state", "messages", "words"),
    [
        ("TIMEOUT", "", "reached its time limit, --time 10"),
        ("COMPLETING", "*** STEP 7.0 ON node1 CANCELLED AT 16:40:00 DUE TO TIME LIMIT ***", "its time limit"),
        ("COMPLETING", "*** STEP 7.0 ON node1 CANCELLED AT 16:40:00 ***", "cancelled with scancel"),
        ("PREEMPTED", "", "in favour of another one"),
        ("OUT_OF_MEMORY", "", "more memory than it asked for"),
        ("RUNNING", "", ""),
    ],
)  # fmt: skip
def test_other_endings_have_words(state: str, messages: str, words: str) -> None:
    told = JobState(state).why_it_ended(messages).format(job=7, limit="10")
    assert words in told and bool(words) == bool(told)


OWNER = """\
import sys
from labkit import Job, slurm
from labkit.clusters.slurm import steps
steps.SILENCE_SECONDS = 2.0
slurm(nproc_per_node=1, python={python!r}).run(
    Job(source={source!r}), lambda *what: print(what[2], end="", flush=True)
)
"""
AGENT = """\
import functools, os
from labkit.clusters.agent import __main__ as agent
agent.NodeAgent = functools.partial(agent.NodeAgent, clock=lambda: 3600.0 * os.path.exists({mark!r}))
agent.main()
"""


def program(file: Path, text: str) -> Path:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def owner(folder: Path, hour: Path) -> subprocess.Popen[str]:
    """A program that runs ranks which print, and then sleep.

    hour: a file. For the agent and the job's script, an hour passes when it is there, and no time before.
    """
    program(folder / "sleep", f"until [ -e {shlex.quote(str(hour))} ]; do /bin/sleep 0.05; done")
    (folder / "agent.py").write_text(AGENT.format(mark=str(hour)))
    # the words before: -P -m labkit.clusters.agent
    agent = shlex.join([sys.executable, "-P", str(folder / "agent.py")])
    python = program(folder / "python", f'shift 3\nexec {agent} "$@"')
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(source=WAIT, python=str(python))],
        env={**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "here\n"
    return process


def test_nothing_is_left_when_the_owner_is_killed(rig: SlurmRig, tmp_path: Path) -> None:
    with owner(tmp_path, tmp_path / "hour") as process:
        process.kill()
    wait_until(rig.is_empty)


def test_nothing_is_left_when_the_owners_machine_is_gone(rig: SlurmRig, tmp_path: Path) -> None:
    """Nothing can cancel the job or its step: the agent notices the silence, and the job that it has no step."""
    with owner(tmp_path, tmp_path / "hour") as process:
        all_of_it = [process.pid, *descendants(process.pid)]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in all_of_it:
                os.kill(pid, number)
    assert len(rig.jobs()) == 1
    (tmp_path / "hour").touch()
    wait_until(rig.is_empty)
