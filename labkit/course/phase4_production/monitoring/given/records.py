"""Records of a monitor: a step of a rank, a rank's summary of an interval, evaluations, and alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

OPERATION_BOUNDS = (*(digit * 10.0**power for power in range(-5, 1) for digit in (1, 2, 5)), 10.0)
"""Upper bounds of a histogram of seconds by call, from 10 microseconds to 10 seconds. One more bin has the rest."""


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
    """Utilization by NVML; None where it is not measured, as are the next two."""
    gpu_memory_bytes: int | None = None
    """Memory of the GPU in use, by all processes and CUDA itself, by NVML."""
    gpu_celsius: int | None = None
    """Temperature of the GPU, by NVML."""
    operations: Mapping[str, Sequence[float]] | None = None
    """Seconds that the rank waited in each call of torch.distributed, by operation, such as `all_reduce`."""


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


class Evaluation(NamedTuple):
    """Figures of a model that was tested, of all ranks together."""

    time: float
    """Seconds since the epoch."""
    step: int
    """Steps that were done."""
    figures: Mapping[str, float]
    """By name: loss, top1, ..."""


class Sink(Protocol):
    """Receives what a monitor records."""

    def step(self, record: StepRecord) -> None: ...

    def alarm(self, alarm: Alarm) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class EvaluationSink(Sink, Protocol):
    """A sink that receives evaluations, too: the first rank's does."""

    def evaluation(self, evaluation: Evaluation) -> None: ...


@runtime_checkable
class BufferedSink(Sink, Protocol):
    """A sink that keeps figures for a while before they are in its file."""

    def flush(self) -> None: ...


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
