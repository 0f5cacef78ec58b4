"""Records of a monitor: a step of a rank, a rank's summary of an interval, and alarms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class StepRecord(NamedTuple):
    """A step of one rank."""

    time: float
    """Seconds since the epoch, on virtual ranks by the virtual clock."""
    rank: int
    step: int
    loss: float
    samples_per_second: float
    """Throughput of this rank."""
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
    """Median over the steps of the interval, as are the next two."""
    communication_seconds: float
    input_seconds: float
    samples_per_second: float
    """Samples of the interval over its seconds."""
    memory_bytes: float
    """Minimum over the steps of the interval."""
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
    """Name of the tensor that differs."""


class Sink(Protocol):
    """Receives what a monitor records."""

    def step(self, record: StepRecord) -> None: ...

    def alarm(self, alarm: Alarm) -> None: ...

    def close(self) -> None: ...


def first_steps(verdicts: Mapping[int, str]) -> tuple[float, float]:
    """Return the first step whose loss is not finite, and the first one with a spike; -1: none."""
    kinds = ("loss not finite", "loss spike")
    bad, spike = (next((step for step, verdict in verdicts.items() if verdict == kind), -1) for kind in kinds)
    return bad, spike


def loss_alarms(summaries: list[Summary]) -> list[Alarm]:
    """Return the alarms about losses of one interval, by the summaries of all ranks."""
    bad = [Alarm("loss not finite", rank, int(own.bad_step)) for rank, own in enumerate(summaries)]
    spikes = [Alarm("loss spike", rank, int(own.spike_step)) for rank, own in enumerate(summaries)]
    return [alarm for alarm in bad + spikes if alarm.step >= 0]
