"""Sink for TensorBoard: scalars of each step, and alarms as texts."""

from __future__ import annotations

from pathlib import Path

from labkit.course.phase4_production.monitoring.given.records import Alarm, StepRecord


class TensorBoardSink:
    """Writes event files to `folder/rank-3`, a run of TensorBoard for each rank.

    Raises ImportError without the package tensorboard.
    """

    def __init__(self, folder: str | Path, rank: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("TensorBoardSink needs the package: pip install tensorboard") from None
        self._writer = SummaryWriter(str(Path(folder) / f"rank-{rank}"))

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
        if record.gpu_percent is not None:
            scalars["gpu/utilization_percent"] = record.gpu_percent
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, record.step)

    def alarm(self, alarm: Alarm) -> None:
        text = f"{alarm.cause} on rank {alarm.rank}: {alarm.detail}"
        self._writer.add_text("alarms", text, alarm.step)

    def close(self) -> None:
        self._writer.close()
