"""The recorder of a monitor: steps and their timed parts, written to the sinks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.course.phase4_production.monitoring.given.arguments import require_part
from labkit.course.phase4_production.monitoring.given.clocks import clock_of, memory_allocated
from labkit.course.phase4_production.monitoring.given.gpu import GpuFigures, GpuReader
from labkit.course.phase4_production.monitoring.given.json_lines import JsonLines
from labkit.course.phase4_production.monitoring.given.operations import OperationTimer
from labkit.course.phase4_production.monitoring.given.records import (
    Alarm,
    BufferedSink,
    Evaluation,
    EvaluationSink,
    Sink,
    StepRecord,
)


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
    operations: Mapping[str, Sequence[float]] | None = None
    """Seconds that the rank waited in each call of torch.distributed, by operation; None where calls are not timed."""


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
    calls: list[tuple[str, list[tuple[Any, Any]]]] | None


class Recorder:
    """Records the steps of one rank. `steps` are those since the last `take`.

    Losses and times stay on the GPU until `take`, so that no step waits for them. operations: time each call of
    torch.distributed; calls outside of `timed` are communication, too.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        device: torch.device,
        log_dir: str | None,
        sinks: Iterable[Sink],
        operations: bool = False,
    ) -> None:
        self._rank, self._clock = rank, clock_of(device)
        self._sinks = [*sinks, *([JsonLines(log_dir, rank, world_size)] if log_dir else [])]
        self._active: set[tuple[str, int]] = set()
        self.steps: list[_Marked] = []
        self._written = 0
        """Number of `steps` that are written already."""
        self.last_step = -1
        """Number of the last step; -1 before the first one."""
        self._parts: list[tuple[str, Any, Any]] = []
        self._timed_parts = 0
        """Number of `timed` contexts around the running code."""
        self._gpu = GpuReader(device) if self._sinks else None
        self._operations = OperationTimer(self._clock.mark, self._waited) if operations else None
        self._began = self._clock.mark()

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Time a part of this step, "communication" or "input". The rest of a step is compute."""
        require_part(part)
        began = self._clock.mark()
        self._timed_parts += 1
        try:
            yield
        finally:
            self._timed_parts -= 1
        self._parts.append((part, began, self._clock.mark()))

    def _waited(self, began: Any, ended: Any) -> None:
        if not self._timed_parts:
            self._parts.append(("communication", began, ended))

    def end_step(self, number: int, loss: float | Tensor, samples: int, memory_bytes: int | None) -> None:
        """Record a step, and begin the next one."""
        ended = self._clock.mark()
        memory = memory_allocated() if memory_bytes is None else memory_bytes
        loss = loss.detach().clone() if isinstance(loss, Tensor) else loss
        calls = None if self._operations is None else self._operations.take()
        self.steps.append(_Marked(number, loss, samples, memory, self._began, ended, self._parts, time.time(), calls))
        self._parts, self.last_step, self._began = [], number, ended

    def take(self) -> list[Step]:
        """Return the steps since the last call; waits for the GPU."""
        steps, self.steps = self._measured(), []
        return steps

    def flush(self, split: Callable[[Step], tuple[float, float, float]]) -> None:
        """Write the steps since the last `take`, which will return them all the same; files have all figures then."""
        steps = self._measured()
        self.write(steps, [split(step) for step in steps])
        self._written = len(steps)
        for sink in self._sinks:
            if isinstance(sink, BufferedSink):
                sink.flush()

    def _measured(self) -> list[Step]:
        seconds = self._clock.seconds
        return [
            Step(
                step.number,
                float(step.loss),
                step.samples,
                step.memory_bytes,
                max(seconds(step.began, step.ended), 1e-9),
                [(part, seconds(began, ended)) for part, began, ended in step.parts],
                step.time,
                self._seconds_by_operation(step),
            )
            for step in self.steps
        ]

    def _seconds_by_operation(self, step: _Marked) -> dict[str, list[float]] | None:
        if step.calls is None:
            return None
        found: dict[str, list[float]] = {}
        for operation, waits in step.calls:
            seconds = sum(self._clock.seconds(began, ended) for began, ended in waits)
            found.setdefault(operation, []).append(seconds)
        return found

    def write(self, steps: Sequence[Step], splits: Sequence[tuple[float, float, float]]) -> None:
        """Write steps to the sinks, each with its seconds of compute, communication and input; none a second time."""
        gpu = GpuFigures() if self._gpu is None else self._gpu.read()
        new = list(zip(steps, splits, strict=True))[self._written :]
        self._written = 0
        for step, split in new:
            rate = step.samples / step.seconds
            record = StepRecord(
                step.time, self._rank, step.number, step.loss, rate, step.seconds, *split, step.memory_bytes, *gpu,
                step.operations,
            )  # fmt: skip
            for sink in self._sinks:
                sink.step(record)

    def begin_step(self, alarms: list[Alarm]) -> list[Alarm]:
        """Return and report the alarms that were not there at the last call; the next step begins now."""
        fresh = [alarm for alarm in alarms if (alarm.cause, alarm.rank) not in self._active]
        self._active = {(alarm.cause, alarm.rank) for alarm in alarms}
        self.report(fresh)
        self._begin_step()
        return fresh

    def _begin_step(self) -> None:
        """Begin the next step now: what was done since the last one belongs to none."""
        if self._operations is not None:
            self._operations.take()
        self._parts, self._began = [], self._clock.mark()

    def evaluate(self, evaluation: Evaluation) -> None:
        """Write an evaluation to the first rank's sinks: all ranks have the same one. The next step begins now."""
        if self._rank == 0:
            for sink in self._sinks:
                if isinstance(sink, EvaluationSink):
                    sink.evaluation(evaluation)
        self._begin_step()

    def report(self, alarms: list[Alarm]) -> list[Alarm]:
        """Write alarms to the first rank's sinks, and return them: all ranks have the same ones."""
        if self._rank == 0:
            for alarm in alarms:
                for sink in self._sinks:
                    sink.alarm(alarm)
        return alarms

    def close(self) -> None:
        if self._operations is not None:
            self._operations.close()
        for sink in self._sinks:
            sink.close()
