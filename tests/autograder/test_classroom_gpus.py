"""The ledger of GPUs and its rules, on what squeue and scontrol have printed. On a real Slurm: tests/clusters/slurm."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from autograder.classroom.gpus import rules
from autograder.classroom.gpus.jobs import Job, SchedulerFailed
from autograder.classroom.gpus.ledger import DAY_SECONDS, Ledger
from autograder.classroom.gpus.slurm_jobs import duration, gpus_in, parse
from autograder.classroom.gpus.watch import Watch
from autograder.classroom.site import Gpus
from labkit.clusters import gpu_ledger, kinds

SQUEUE = """\
2|ada|PENDING|1795744953|1795745253|5:00|1|1|gres:gpu:1|N/A|N/A|N/A
4|ada|PENDING|1795746720|1795748520|30:00|4|2-4|N/A|gres:gpu:a100:2|N/A|N/A
1|grace|RUNNING|1795743153|1795744953|UNLIMITED|4|2|N/A|gres:gpu:2|N/A|N/A
7|grace|CANCELLED|1795743153|1795743155|2:00|4|1|N/A|N/A|N/A|gres:gpu
9|ada|RUNNING|1795743155|1795745255|8:00:00|1|1|N/A|N/A|N/A|N/A
"""
"""Slurm 22.05, with SLURM_TIME_FORMAT=%s."""
DETAILS = """\
JobId=1 JobName=x
   JOB_GRES=gpu:0
   JOB_GRES=gpu:a100:3,gpu:v100:1
     Nodes=node1 CPU_IDs=0-2 Mem=0 GRES=gpu:2(IDX:0-1)
   TresPerNode=gres:gpu:2
"""
"""A job whose name has a second line, which a learner could have written."""
MIDNIGHT = 1795737600
LIMITS = Gpus(seconds_per_day=1000, longest_minutes=10, most_ranks=4)
RUNNING = Job("1", "ada", "RUNNING", MIDNIGHT + 100, MIDNIGHT + 700, 600, 2, 2)


def test_jobs_are_read_as_slurm_prints_them() -> None:
    jobs = {job.id: job for job in parse(SQUEUE.splitlines())}
    assert jobs["2"] == Job("2", "ada", "PENDING", 1795744953, 1795745253, 300, 1, 1)
    assert [jobs[id].asked_gpus for id in ("4", "1", "7", "9")] == [8, 4, 4, 0]
    assert jobs["2"].waits and not jobs["2"].has_run and jobs["1"].holds and jobs["7"].has_run
    assert jobs["1"].limit_seconds == math.inf and jobs["9"].limit_seconds == 8 * 3600
    assert duration("1-02:03:04") == 93_784
    assert gpus_in(DETAILS) == 4, "a name must not lower the count"


def test_a_second_look_or_a_restart_counts_nothing_twice(tmp_path: Path) -> None:
    path, gpus = tmp_path / "gpus.sqlite", {("1", RUNNING.start): 2}
    for now in (MIDNIGHT + 110, MIDNIGHT + 130, MIDNIGHT + 130):
        Ledger(path).record([RUNNING], gpus, now)
    assert Ledger(path).used(MIDNIGHT + 130) == {"ada": 60}
    assert path.stat().st_mode & 0o777 == 0o600
    # Slurm's end counts, and remains although the job is seen again
    ended = replace(RUNNING, state="CANCELLED", end=MIDNIGHT + 125)
    for now in (MIDNIGHT + 135, MIDNIGHT + 140):
        Ledger(path).record([ended], gpus, now)
    assert Ledger(path).used(MIDNIGHT + 140) == {"ada": 50}
    # the hub was away from its start to its end: the whole job counts; a job that was requeued is another use
    Ledger(path).record([replace(ended, id="2", end=MIDNIGHT + 160)], {("2", RUNNING.start): 1}, MIDNIGHT + 300)
    Ledger(path).record([replace(RUNNING, start=MIDNIGHT + 310)], {("1", MIDNIGHT + 310): 1}, MIDNIGHT + 320)
    assert Ledger(path).used(MIDNIGHT + 320) == {"ada": 50 + 60 + 10}


def test_a_job_over_midnight_is_charged_to_both_days(tmp_path: Path) -> None:
    ledger, over = Ledger(tmp_path / "gpus.sqlite"), replace(RUNNING, start=MIDNIGHT - 40)
    ledger.record([over], {("1", over.start): 2}, MIDNIGHT + 30)
    assert ledger.used(MIDNIGHT + 30) == {"ada": 60} and ledger.used(MIDNIGHT - 1) == {"ada": 80}
    # forgotten by Slurm while the hub was away: it ends where it was seen last
    ledger.record([], {}, MIDNIGHT + 500)
    ledger.record([], {}, MIDNIGHT + DAY_SECONDS)
    assert ledger.used(MIDNIGHT + 500) == {"ada": 60} and ledger.used(MIDNIGHT + DAY_SECONDS) == {}


def test_a_job_that_is_ending_is_charged_until_its_nodes_are_free(tmp_path: Path) -> None:
    """Its processes ignore SIGTERM: Slurm's end is when it was cancelled, and `KillWait` later its nodes are free."""
    ledger, gpus = Ledger(tmp_path / "gpus.sqlite"), {("1", RUNNING.start): 2}
    ledger.record([RUNNING], gpus, MIDNIGHT + 104)
    ending = replace(RUNNING, state="COMPLETING", end=MIDNIGHT + 103)
    for now in (MIDNIGHT + 109, MIDNIGHT + 129):
        ledger.record([ending], gpus, now)
        assert ledger.used(now) == {"ada": 2 * (now - RUNNING.start)}
    ledger.record([replace(ending, state="CANCELLED")], gpus, MIDNIGHT + 134)
    ledger.record([], {}, MIDNIGHT + 500)
    assert ledger.used(MIDNIGHT + 500) == {"ada": 2 * 29}
    # nothing can be asked of it any more
    assert rules.actions([ending], gpus, {"ada": 5000}, LIMITS, MIDNIGHT + 129) == []


class _Slurm:
    """Slurm with one job. Each answer to how many GPUs it has is said once, the last one for ever; None: none."""

    def __init__(self, job: Job, *answers: int | None) -> None:
        self.job, self._answers = job, list(answers)

    def jobs_of(self, _: Collection[str]) -> list[Job]:
        return [self.job]

    def allocated_gpus(self, _: str) -> int:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is None:
            raise SchedulerFailed("scontrol: timed out")
        return answer

    def cancel(self, _: str) -> None:
        raise AssertionError("not to be cancelled")

    def shorten(self, _: str, minutes: int) -> None:
        raise AssertionError("not to be shortened")


@pytest.mark.parametrize("answers", [(8,), (None, 8), (8, 0)])
@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED"])
def test_what_slurm_has_given_counts_and_not_what_was_asked(
    tmp_path: Path, state: str, answers: tuple[int | None, ...]
) -> None:
    """Also if Slurm did not answer at the first look, and for a job that was over then: `--exclusive` without gres."""
    job = replace(RUNNING, state=state, start=MIDNIGHT + 100, end=MIDNIGHT + 110, asked_gpus=0, tasks=1)
    now = MIDNIGHT + 110
    watch = Watch(
        _Slurm(job, *answers),
        Ledger(tmp_path / "gpus.sqlite"),
        Gpus(seconds_per_day=10_000, most_ranks=8, longest_minutes=10),
        ["ada"],
    )
    for _ in range(2):
        watch.look_at(now)
    assert watch.ledger.used(now) == {"ada": 80}


@pytest.mark.parametrize(
    ("job", "used", "minutes", "text"),
    [
        (RUNNING, 0, None, ""),
        (replace(RUNNING, limit_seconds=math.inf), 0, 10, "lowered to 10 minutes: the course allows no longer job"),
        # 200 GPU-seconds for two GPUs are 100 s, after 60 s
        (RUNNING, 800, 3, "lowered to 3 minutes: 200 GPU-seconds are left today"),
        (RUNNING, 1000, 0, "today's 1000 GPU-seconds are used; there are new ones at 00:00 UTC"),
        (replace(RUNNING, tasks=5), 0, 0, "it has 5 ranks, and the course allows 4"),
        (replace(RUNNING, state="PENDING", asked_gpus=8), 0, 0, "it has 8 ranks"),
        (replace(RUNNING, state="PENDING"), 1000, 0, "today's 1000 GPU-seconds are used"),
        (replace(RUNNING, state="PENDING", asked_gpus=0, tasks=9), 2000, None, ""),
        (replace(RUNNING, state="COMPLETED", tasks=9), 2000, None, ""),
    ],
)
def test_a_job_beyond_the_limits_is_cancelled_or_shortened(job: Job, used: int, minutes: int | None, text: str) -> None:
    found = rules.actions([job], {("1", RUNNING.start): 2}, {"ada": used}, LIMITS, RUNNING.start + 60)
    assert [one.minutes for one in found] == ([] if minutes is None else [minutes])
    assert all(text in one.text for one in found)


def test_jobs_of_one_learner_share_what_is_left() -> None:
    other = replace(RUNNING, id="2")
    gpus = {("1", RUNNING.start): 2, ("2", RUNNING.start): 2}
    found = rules.actions([RUNNING, other], gpus, {"ada": 520}, LIMITS, RUNNING.start + 60)
    assert [(one.job.id, one.minutes) for one in found] == [("1", 3), ("2", 3)]


def served(answer: bytes, monkeypatch: pytest.MonkeyPatch, job_id: str = "") -> str:
    """Return what a cell says of a hub that answers once."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + answer if answer else b"nothing")

        thread = threading.Thread(target=serve)
        thread.start()
        monkeypatch.setattr(gpu_ledger, "_not_before", 0.0)
        monkeypatch.setattr(gpu_ledger, "_LIMIT_SECONDS", 300.0)
        monkeypatch.setenv(gpu_ledger.ADDRESS, f"http://127.0.0.1:{server.getsockname()[1]}/")
        said = gpu_ledger.in_words(job_id)
        thread.join()
    return said


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b'{"used": null}', b'{"used": 1, "left": 2}'])
def test_a_hub_that_answers_nothing_useful_is_as_no_hub(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(answer, monkeypatch) == ""
    # it is not asked again soon; nor does one that is gone break anything
    assert gpu_ledger.in_words() == gpu_ledger.why("1") == ""
    monkeypatch.setattr(gpu_ledger, "_not_before", 0.0)
    assert gpu_ledger.in_words() == ""


def test_a_cell_that_waits_says_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = b'{"used": 1, "left": 2, "notices": [], "places": {"x": 3}}'
    used = "1 GPU-seconds used today, 2 left"
    assert served(answer, monkeypatch, "x") == f"place 3 of those that wait; {used}"
    assert served(answer, monkeypatch, "y") == served(answer, monkeypatch) == used


def test_the_course_s_preset_holds_for_what_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kinds.PRESETS, '{"local": {"nproc_per_node": 3}}')
    assert kinds.make("local", {}).nproc_per_node == 3
    assert kinds.make("local", {"nproc_per_node": 2}).nproc_per_node == 2
