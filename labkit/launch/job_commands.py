"""`labkit jobs`, `labkit logs` and `labkit stop`: detached jobs, from any shell of the user."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from labkit.command_line.commands import CommandError
from labkit.launch.detached import DamagedJob, DetachedJob, all_jobs, find
from labkit.launch.exit_status import FAILED, INTERRUPTED, TERMINATED

if TYPE_CHECKING:
    from labkit.clusters.cluster import BatchCluster

_LOOK_SECONDS = 0.2
_ASK_SECONDS = 3.0
"""Seconds between queries to the cluster, whose controller serves everybody."""
_STOP_LIMIT_SECONDS = 30.0
_FILE_WIDTH = 200
"""Characters of a line of the table, if it is not for a terminal."""


@dataclass(frozen=True)
class JobState:
    """State of a detached job."""

    phase: Literal["queued", "running", "ended", "unknown"]
    text: str
    """Description: `failed, exit status 1`."""


def jobs(prune: bool, as_json: bool) -> int:
    """Print the user's jobs, as a table or as JSON, or with `prune` forget those that have ended."""
    known = all_jobs()
    if prune:
        ended = [job for job in known if _state_or_damage(job).phase == "ended"]
        for job in ended:
            job.forget()
        print(f"{len(ended)} jobs that have ended are forgotten; {len(known) - len(ended)} are left")
        return 0
    if as_json:
        print(json.dumps([_plain(job) for job in known], indent=2))
        return 0
    if not known:
        print("no jobs: labkit launch --detach starts one")
        return 0
    table = Table(box=SIMPLE_HEAD)
    for column in ("job", "state", "cluster", "launched", "command"):
        table.add_column(column, overflow="fold", no_wrap=column in ("job", "launched"))
    for job in known:
        text = _state_or_damage(job).text
        try:
            record = job.record
        except DamagedJob:  # its exit status is a file of its own, and may be known
            table.add_row(job.name, text, "", "", "")
            continue
        where = f"{record['cluster']} {job.batch_id}".strip()
        table.add_row(job.name, text, where, record["launched"].replace("T", " "), record["command"])
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    Console(highlight=False, markup=False, width=width).print(table)
    return 0


def _plain(job: DetachedJob) -> dict[str, Any]:
    """A job for `--json`. What a damaged record would say is null; `state` then says what is wrong with it."""
    found = _state_or_damage(job)
    try:
        record = job.record
    except DamagedJob:
        record = {}
    facts = {name: record.get(name) for name in ("cluster", "host", "directory", "launched", "command")}
    return {
        "name": job.name, "phase": found.phase, "state": found.text, "exit_status": job.exit_status, **facts,
        "batch_id": job.batch_id or None, "output": str(job.output),
    }  # fmt: skip


def logs(name: str, follow: bool) -> int:
    """Print what a job has printed; with `follow` until it ends, and return its exit status."""
    matches = find(name)
    if len(matches) > 1:
        names = f"{matches[0].name} to {matches[-1].name}"
        raise CommandError(f"{name} is an array: give one of its jobs, {names}")
    (job,) = matches
    try:
        return _follow(job) if follow else _print_from(job, 0) * 0
    except KeyboardInterrupt:
        print(f"\n{name} goes on: labkit stop {name} ends it", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # else Python would report the broken pipe again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def stop(names: Sequence[str]) -> int:
    """End jobs. Their ranks may save: they get SIGTERM first."""
    for job in [job for name in names for job in find(name)]:
        before = state(job)
        if before.phase == "ended":
            print(f"{job.name} has ended already: {before.text}")
            continue
        if job.record["in_batch_job"]:
            _cancel(job)
        else:
            _stop_process(job)
        if job.exit_status is None:  # it was queued, or killed
            job.end(TERMINATED)
        print(f"{job.name} is stopped")
    return 0


def state(job: DetachedJob) -> JobState:
    """Return the state of a job. Raises `DamagedJob` if neither its record nor its exit status says it."""
    if (status := job.exit_status) is not None:
        words = {0: "succeeded", TERMINATED: "stopped", INTERRUPTED: "stopped"}
        return JobState("ended", words.get(status, f"failed, exit status {status}"))
    record = job.record
    if record["in_batch_job"]:
        batch_state = _batch_state(job)
        # it may have ended since the first look
        return state(job) if batch_state.phase == "ended" and job.exit_status is not None else batch_state
    if record["host"] != socket.gethostname():
        return JobState("running", f"on {record['host']}: look there")
    if job.is_locked():
        return JobState("running", "running")
    return state(job) if job.exit_status is not None else JobState("ended", "its launcher was killed")


def _state_or_damage(job: DetachedJob) -> JobState:
    """The state, for a table: one damaged record does not hide the other jobs."""
    try:
        return state(job)
    except DamagedJob as damage:
        return JobState("unknown", str(damage))


def _follow(job: DetachedJob) -> int:
    position, shown, next_question, last = 0, "", 0.0, state(job)
    while True:
        position = _print_from(job, position)
        if last.phase == "ended":
            break
        if last.phase == "queued" and last.text != shown:
            print(last.text, file=sys.stderr)
            shown = last.text
        time.sleep(_LOOK_SECONDS)
        if job.exit_status is not None or time.monotonic() >= next_question:
            last = state(job)
            next_question = time.monotonic() + _ASK_SECONDS
    if job.exit_status is None:
        print(f"{job.name} ended without an exit status: {last.text}", file=sys.stderr)
    return FAILED if job.exit_status is None else job.exit_status


def _print_from(job: DetachedJob, position: int) -> int:
    """Print the job's output from a position on, and return the next one."""
    with contextlib.suppress(FileNotFoundError), job.output.open("rb") as file:  # queued
        file.seek(position)
        while data := file.read(1 << 16):
            sys.stdout.buffer.write(data)
            position += len(data)
        sys.stdout.flush()
    return position


def _stop_process(job: DetachedJob) -> None:
    if job.record["host"] != socket.gethostname():
        raise CommandError(f"{job.name} runs on {job.record['host']}: stop it there")
    limit = time.monotonic() + _STOP_LIMIT_SECONDS
    number = signal.SIGTERM
    # as long as the lock is held, the process with this number is the launcher
    while job.is_locked():
        with contextlib.suppress(ProcessLookupError):
            os.kill(job.pid, number)
        while job.is_locked() and time.monotonic() < limit:
            time.sleep(0.05)
        number, limit = signal.SIGKILL, time.monotonic() + 1


def _batch_state(job: DetachedJob) -> JobState:
    from labkit.clusters import InvalidJob  # imports torch

    if not job.batch_id:
        return JobState("queued", "is submitted")
    try:
        batch_job = _batch_cluster(job).batch_state(job.batch_id)
    except InvalidJob as error:  # one cluster out of reach does not hide the others' jobs
        return JobState("unknown", f"unknown: {error}")
    return JobState(batch_job.phase, batch_job.text)


def _cancel(job: DetachedJob) -> None:
    from labkit.clusters import InvalidJob

    try:
        _batch_cluster(job).cancel(job.batch_id)
    except InvalidJob as error:
        raise CommandError(f"{job.name} cannot be stopped: {error}") from None


def _batch_cluster(job: DetachedJob) -> type[BatchCluster]:
    from labkit.clusters import InvalidJob, kinds
    from labkit.clusters.cluster import BatchCluster

    name = job.record["cluster"]
    kind = kinds.registered().get(name)
    cluster = None if kind is None else kind.cluster()
    if cluster is None or not issubclass(cluster, BatchCluster):
        raise InvalidJob(f"this lab knows no {name} cluster with batch jobs")
    return cluster
