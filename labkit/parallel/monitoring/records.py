"""What a monitor records: a step of a rank, a rank's summary of an interval, and alarms."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from torch import Tensor


class Pending(NamedTuple):
    """A step whose figures may still be on the GPU."""

    step: int
    loss: float | Tensor
    samples: int
    memory_bytes: int
    began: Any
    """Mark of the clock at which the step began."""
    ended: Any
    parts: list[tuple[str, Any, Any]]
    """Timed parts of the step: "communication" or "input", mark at the beginning, mark at the end."""


class StepRecord(NamedTuple):
    """A step of one rank."""

    time: float
    """Seconds since the epoch; on virtual ranks, since the job began."""
    rank: int
    step: int
    loss: float
    samples_per_second: float
    """Of this rank."""
    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    input_seconds: float
    memory_bytes: int
    gpu_percent: int | None = None
    """Utilization by NVML; None where it is not known."""


class Summary(NamedTuple):
    """A rank's figures of one interval of steps, as all ranks exchange them: 9 numbers of 8 bytes."""

    step: float
    """Last step of the interval."""
    compute_seconds: float
    """Median of a step, as are the next two."""
    communication_seconds: float
    input_seconds: float
    samples_per_second: float
    """Samples of the interval over its seconds."""
    memory_bytes: float
    """Least of the interval's steps."""
    bad_step: float
    """First step whose loss is NaN or infinite; -1: none."""
    spike_step: float
    """First step whose loss is a spike; -1: none."""
    link_seconds: float
    """Time of the last probe, a message from the rank `stride` before this one; 0: none yet."""


class Alarm(NamedTuple):
    """Something wrong on a rank."""

    cause: str
    """"slow compute", "slow input", "slow link", "memory leak", "loss spike", "loss not finite" or "desynchronized"."""
    rank: int
    step: int
    """The step of the loss; else the last step before the alarm."""
    detail: str = ""
    """The parameter's name, or figures."""


class Sink(Protocol):
    """Receives what a monitor records."""

    def step(self, record: StepRecord) -> None: ...

    def alarm(self, alarm: Alarm) -> None: ...

    def close(self) -> None: ...


class Alarms:
    """Passes on each alarm once, when it begins: the first rank writes it to its sinks."""

    def __init__(self, rank: int, sinks: Iterable[Sink]) -> None:
        self.sinks = list(sinks) if rank == 0 else []
        self.active: set[tuple[str, int]] = set()

    def new(self, found: list[Alarm]) -> list[Alarm]:
        """Return those that were not there at the last call, and write them."""
        fresh = [alarm for alarm in found if (alarm.cause, alarm.rank) not in self.active]
        self.active = {(alarm.cause, alarm.rank) for alarm in found}
        self.write(fresh)
        return fresh

    def write(self, alarms: list[Alarm]) -> None:
        for alarm in alarms:
            for sink in self.sinks:
                sink.alarm(alarm)


def now() -> float:
    """Return the time for records: seconds since the epoch; on virtual ranks, since the job began."""
    return time.time()
