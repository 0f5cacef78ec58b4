"""Rules for learners' jobs with GPUs: which are cancelled or shortened, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autograder.classroom.gpus.jobs import Job
from autograder.classroom.site import Gpus


@dataclass(frozen=True)
class Action:
    """A change of a job."""

    job: Job
    minutes: int
    """The new time limit; 0: it is cancelled."""
    text: str
    """Reason, for the learner."""


def too_many(ranks: int, limits: Gpus) -> str:
    """Return the message to a learner whose job is too large."""
    return f"it has {ranks} ranks, and the course allows {limits.most_ranks}"


def used_up(limits: Gpus) -> str:
    """Return the message to a learner who has no GPU-seconds left today."""
    return f"today's {limits.seconds_per_day} GPU-seconds are used; there are new ones at 00:00 UTC"


def actions(
    jobs: Iterable[Job], gpus: Mapping[tuple[str, int], int], used: Mapping[str, int], limits: Gpus, now: float
) -> list[Action]:
    """Return the changes that learners' jobs need.

    gpus: GPUs of jobs that hold nodes, by job and start. used: GPU-seconds of each learner today.
    """
    having = {
        job: gpus.get((job.id, job.start), 0) if job.holds else 0
        for job in jobs
        if (job.holds or job.waits) and not job.is_ending
    }
    together: dict[str, int] = {}
    for job, count in having.items():
        together[job.user] = together.get(job.user, 0) + count
    needed = []
    for job, count in having.items():
        if count or (job.waits and job.asked_gpus):
            left = limits.seconds_per_day - used.get(job.user, 0)
            action = _about(job, count, together[job.user], left, limits, now)
            if action is not None:
                needed.append(action)
    return needed


def _about(job: Job, gpus: int, together: int, left: int, limits: Gpus, now: float) -> Action | None:
    """Return the change that a job needs, if any.

    gpus, together: GPUs of the job, and of all jobs of the learner. left: GPU-seconds left today.
    """
    ranks = max(job.tasks, job.asked_gpus, gpus)
    if ranks > limits.most_ranks:
        return Action(job, 0, f"job {job.id} was cancelled: {too_many(ranks, limits)}")
    if left <= 0:
        return Action(
            job,
            0,
            f"job {job.id} was cancelled: {used_up(limits)}",
        )
    minutes, why = limits.longest_minutes, "the course allows no longer job"
    if job.holds:
        enough = math.ceil((max(0.0, now - job.start) + left / together) / 60)
        if enough < minutes:
            minutes, why = enough, f"{left} GPU-seconds are left today"
    if job.limit_seconds <= 60 * minutes:
        return None
    return Action(job, minutes, f"the time limit of job {job.id} was lowered to {minutes} minutes: {why}")
