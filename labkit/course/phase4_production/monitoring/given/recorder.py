"""The recorder of a monitor: steps and their timed parts, written to the sinks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.course.phase4_production.monitoring.given.arguments import require_part
from labkit.course.phase4_production.monitoring.given.clocks import clock_of, gpu_percent, memory_allocated
from labkit.course.phase4_production.monitoring.given.json_lines import JsonLines
from labkit.course.phase4_production.monitoring.given.records import Alarm, Sink, StepRecord


class Step(NamedTuple):
    """A step of this rank."""

    number: int
    loss: float
    samples: int
    memory_bytes: int
    seconds: float
    """Duration of the whole step, at least a nanosecond."""
    parts: list[tuple[str, float]]
    """Timed parts with their seconds, in order: "communication" or "input"."""
    time: float
    """Time at which it ended: seconds since the epoch, on virtual ranks by the virtual clock."""


class _Marked(NamedTuple):
    """A step whose figures may still be on their way through the GPU."""

    number: int
    loss: float | Tensor
    samples: int
    memory_bytes: int
    began: Any
    ended: Any
    parts: list[tuple[str, Any, Any]]
    time: float


class Recorder:
    """Records the steps of one rank. `steps` are those since the last `take`.

    Losses and times stay on the GPU until `take`, so that no step waits for them.
    """

    def __init__(
        self, rank: int, world_size: int, device: torch.device, log_dir: str | None, sinks: Iterable[Sink]
    ) -> None:
        self._rank, self._device, self._clock = rank, device, clock_of(device)
        self._sinks = [*sinks, *([JsonLines(log_dir, rank, world_size)] if log_dir else [])]
        self._active: set[tuple[str, int]] = set()
        self.steps: list[_Marked] = []
        self.last_step = -1
        """Number of the last step; -1 before the first one."""
        self._parts: list[tuple[str, Any, Any]] = []
        self._began = self._clock.mark()

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Time a part of this step, "communication" or "input". The rest of a step is compute."""
        require_part(part)
        began = self._clock.mark()
        yield
        self._parts.append((part, began, self._clock.mark()))

    def end_step(self, number: int, loss: float | Tensor, samples: int, memory_bytes: int | None) -> None:
        """Record a step, and begin the next one."""
        ended = self._clock.mark()
        memory = memory_allocated() if memory_bytes is None else memory_bytes
        loss = loss.detach().clone() if isinstance(loss, Tensor) else loss
        self.steps.append(_Marked(number, loss, samples, memory, self._began, ended, self._parts, time.time()))
        self._parts, self.last_step, self._began = [], number, ended

    def take(self) -> list[Step]:
        """Return the steps since the last call; waits for the GPU."""
        seconds = self._clock.seconds
        steps = [
            Step(
                step.number,
                float(step.loss),
                step.samples,
                step.memory_bytes,
                max(seconds(step.began, step.ended), 1e-9),
                [(part, seconds(began, ended)) for part, began, ended in step.parts],
                step.time,
            )
            for step in self.steps
        ]
        self.steps = []
        return steps

    def write(self, steps: Sequence[Step], splits: Sequence[tuple[float, float, float]]) -> None:
        """Write steps to the sinks, each with its seconds of compute, communication and input."""
        percent = gpu_percent(self._device) if self._sinks else None
        for step, split in zip(steps, splits, strict=True):
            rate = step.samples / step.seconds
            record = StepRecord(
                step.time, self._rank, step.number, step.loss, rate, step.seconds, *split, step.memory_bytes, percent
            )
            for sink in self._sinks:
                sink.step(record)

    def begin_step(self, alarms: list[Alarm]) -> list[Alarm]:
        """Return and report the alarms that were not there at the last call; the next step begins now."""
        fresh = [alarm for alarm in alarms if (alarm.cause, alarm.rank) not in self._active]
        self._active = {(alarm.cause, alarm.rank) for alarm in alarms}
        self.report(fresh)
        self._began = self._clock.mark()
        return fresh

    def report(self, alarms: list[Alarm]) -> list[Alarm]:
        """Write alarms to the first rank's sinks, and return them: all ranks have the same ones."""
        if self._rank == 0:
            for alarm in alarms:
                for sink in self._sinks:
                    sink.alarm(alarm)
        return alarms

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
