"""Sink for TensorBoard: scalars of each step, histograms of communication, evaluations, and alarms as texts."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from labkit.course.phase4_production.monitoring.given.records import Alarm, Evaluation, StepRecord
from labkit.course.training_run.json_line_file import warn_of_lost_log
from labkit.installing import how_to_install

HISTOGRAM_STEPS = 10
"""Steps of a histogram: the seconds of each call in them."""
FLUSH_SECONDS = 10
"""Longest time until a figure is in the file."""


class TensorBoardSink:
    """Writes event files to `folder/rank-3`, a run of TensorBoard for each rank.

    Raises ImportError without the package tensorboard. A full disk ends no training: one warning names the folder, and
    every `HISTOGRAM_STEPS` steps a new file is tried, which TensorBoard shows as a part of the same run.
    """

    def __init__(self, folder: str | Path, rank: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            how = how_to_install("tensorboard", "ranks")
            raise ImportError(f"TensorBoardSink needs the package tensorboard: {how}") from None
        _silence_writers()
        self._folder = Path(folder) / f"rank-{rank}"
        self._make_writer: Callable[[], Any] = lambda: SummaryWriter(str(self._folder), flush_secs=FLUSH_SECONDS)
        self._writer: Any = self._make_writer()
        """None while the disk is full."""
        self._is_losing = False
        self._operations: defaultdict[str, list[float]] = defaultdict(list)
        self._steps, self._last_step = 0, 0

    def step(self, record: StepRecord) -> None:
        scalars = {
            "training/loss": record.loss,
            "training/samples_per_second": record.samples_per_second,
            "time/step_seconds": record.step_seconds,
            "time/compute_seconds": record.compute_seconds,
            "time/communication_seconds": record.communication_seconds,
            "time/input_seconds": record.input_seconds,
            "memory/allocated_bytes": record.memory_bytes,
        }
        operations = record.operations or {}
        gpu = {
            "gpu/utilization_percent": record.gpu_percent,
            "gpu/memory_used_bytes": record.gpu_memory_bytes,
            "gpu/temperature_celsius": record.gpu_celsius,
        }
        scalars |= {name: value for name, value in gpu.items() if value is not None}
        scalars |= {f"communication/{name}_seconds": sum(calls) for name, calls in operations.items()}
        self._write(lambda writer: [writer.add_scalar(*each, record.step) for each in scalars.items()])
        for name, calls in operations.items():
            self._operations[name] += calls
        self._steps, self._last_step = self._steps + 1, record.step
        if self._steps == HISTOGRAM_STEPS:
            self._write_histograms()

    def _write_histograms(self) -> None:
        if self._writer is None:
            with contextlib.suppress(OSError):
                self._writer = self._make_writer()
        calls = {f"communication/{name}": torch.tensor(seconds) for name, seconds in self._operations.items()}
        self._write(lambda writer: [writer.add_histogram(*each, self._last_step) for each in calls.items()])
        self._operations.clear()
        self._steps = 0

    def _write(self, action: Callable[[Any], object]) -> None:
        """Call `action` with the writer, whose thread may have found the disk full at an earlier call."""
        if self._writer is None:
            return
        try:
            action(self._writer)
        except OSError as error:
            if not self._is_losing:
                warn_of_lost_log(self._folder, error)
            self._is_losing, writer, self._writer = True, self._writer, None
            with contextlib.suppress(OSError):
                writer.close()

    def evaluation(self, evaluation: Evaluation) -> None:
        figures = {f"evaluation/{name}": value for name, value in evaluation.figures.items()}
        self._write(lambda writer: [writer.add_scalar(*each, evaluation.step) for each in figures.items()])

    def alarm(self, alarm: Alarm) -> None:
        text = f"{alarm.cause} on rank {alarm.rank}: {alarm.detail}"
        self._write(lambda writer: writer.add_text("alarms", text, alarm.step))

    def flush(self) -> None:
        self._write(lambda writer: writer.flush())

    def close(self) -> None:
        self._write_histograms()
        # `close` alone would leave an error to its thread
        self.flush()
        self._write(lambda writer: writer.close())


@functools.cache
def _silence_writers() -> None:
    """Let no thread of a writer print a traceback when the disk is full: the writer's next call raises the error."""
    show = threading.excepthook

    def hook(failed: threading.ExceptHookArgs) -> None:
        is_writer = type(failed.thread).__module__.startswith("tensorboard.")
        if not (is_writer and issubclass(failed.exc_type, OSError)):
            show(failed)

    threading.excepthook = hook
