"""A job of whatever schedules them, and what the ledger needs of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD")
_HOLDING = ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")


class SchedulerFailed(Exception):
    """The scheduler does not answer as needed. The message is its own."""


@dataclass(frozen=True)
class Job:
    """One job. Times are Unix seconds."""

    id: str
    user: str
    state: str
    """Slurm's name, also for what another scheduler has: `PENDING`, `RUNNING`, `CANCELLED`, ..."""
    start: int
    """0: it has not started. For a job that waits, when it may start."""
    end: int
    """When it ended, or when its time limit ends."""
    limit_seconds: float
    """Infinite if it has none."""
    tasks: int
    asked_gpus: int
    """At least so many, by its options."""

    @property
    def waits(self) -> bool:
        return self.state in _WAITING

    @property
    def holds(self) -> bool:
        """Whether it has nodes now."""
        return self.state in _HOLDING

    @property
    def has_run(self) -> bool:
        """Whether it holds nodes, or held some and has ended."""
        return self.start > 0 and not self.waits


class Scheduler(Protocol):
    """What schedules jobs: a module for Slurm, an object for Kubernetes. Each raises `SchedulerFailed`."""

    def jobs_of(self, users: Collection[str], /) -> list[Job]:
        """Return all jobs of these users, also those that have just ended, those that wait in their order."""

    def allocated_gpus(self, job_id: str, /) -> int:
        """Return how many GPUs a job holds."""

    def cancel(self, job_id: str, /) -> None:
        """End a job."""

    def shorten(self, job_id: str, minutes: int, /) -> None:
        """Lower the time limit of a job."""
