"""A job and its scheduler, as the ledger needs them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD")
_ENDING = "COMPLETING"
_HOLDING = ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", _ENDING)


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
    """Start time; 0: not started. For a waiting job, the expected start."""
    end: int
    """Time at which it ended or began to end, or at which its time limit ends."""
    limit_seconds: float
    """Time limit in seconds; infinite if it has none."""
    tasks: int
    asked_gpus: int
    """Lower bound of the GPUs that its options request."""

    @property
    def waits(self) -> bool:
        return self.state in _WAITING

    @property
    def holds(self) -> bool:
        """Whether it has nodes now."""
        return self.state in _HOLDING

    @property
    def is_ending(self) -> bool:
        """Whether it was ended, but its processes still hold nodes: they ignore SIGTERM, for example."""
        return self.state == _ENDING

    @property
    def has_run(self) -> bool:
        """Whether it holds nodes, or held some and has ended."""
        return self.start > 0 and not self.waits


class Scheduler(Protocol):
    """Interface of a scheduler: a module for Slurm, an object for Kubernetes. Each raises `SchedulerFailed`."""

    def jobs_of(self, users: Collection[str], /) -> list[Job]:
        """Return all jobs of these users, also those that have just ended; waiting jobs in queue order."""

    def allocated_gpus(self, job_id: str, /) -> int:
        """Return how many GPUs a job holds, or held, if it has ended lately."""

    def cancel(self, job_id: str, /) -> None:
        """End a job."""

    def shorten(self, job_id: str, minutes: int, /) -> None:
        """Lower the time limit of a job."""
