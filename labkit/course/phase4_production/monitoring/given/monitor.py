"""Base of every monitor: its arguments, the history of summaries, the recorder of steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from statistics import median

import torch
from torch.distributed import ProcessGroup

from labkit.course.phase4_production.monitoring.given.arguments import require_monitor
from labkit.course.phase4_production.monitoring.given.recorder import Recorder, Step
from labkit.course.phase4_production.monitoring.given.records import Evaluation, Sink, Summary


class Monitor:
    """Base of `DistributedTrainingMonitor`: its constructor.

    rank, world_size: those in `group`; no process group is needed for one rank. interval: steps between two
    exchanges. stride: each rank probes the link to the rank `stride` after it; to probe the network between nodes, give
    the number of ranks of a node. probe_nbytes: of that message. log_dir: folder for JSON lines. sinks: receive each
    step, at the end of its interval; `close()` closes them. operations: time each call of torch.distributed; those
    outside of `timed` are communication, too. Raises ValueError.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        *,
        interval: int = 10,
        stride: int = 1,
        probe_nbytes: int = 1 << 20,
        log_dir: str | None = None,
        sinks: Iterable[Sink] = (),
        operations: bool = False,
        device: torch.device | str = "cpu",
        group: ProcessGroup | None = None,
    ) -> None:
        require_monitor(rank, world_size, interval, stride, probe_nbytes, group)
        self.rank, self.world_size, self.interval, self.stride = rank, world_size, interval, stride
        self.probe_nbytes, self.device, self.group = probe_nbytes, torch.device(device), group
        self.history: deque[list[Summary]] = deque(maxlen=4)
        """The last intervals, each with the summaries of all ranks."""
        self.losses: deque[float] = deque(maxlen=20)
        """This rank's last losses, without those that are not finite."""
        self.link_seconds = 0.0
        """Seconds of this rank's last probe; 0: none yet."""
        self.recorder = Recorder(rank, world_size, self.device, log_dir, sinks, operations)
        self.timed = self.recorder.timed

    def recent(self, field: str) -> list[float]:
        """Return a figure of each rank: the median of its summaries of the last 3 intervals."""
        return [median(getattr(entry, field) for entry in own) for own in zip(*list(self.history)[-3:], strict=True)]

    def log_evaluation(self, step: int, **figures: float) -> None:
        """Write figures of a tested model, of all ranks together, after `step` steps. All ranks call it; sends nothing.

        The time since the last step, in which the model was tested, belongs to no step.
        """
        self.recorder.evaluate(Evaluation(time.time(), step, figures))

    def flush(self) -> None:
        """Write the steps of an interval that has not ended, without an exchange: a checkpoint's steps are then in the
        logs, whatever ends the process."""
        self.recorder.flush(self.split)

    def close(self) -> None:
        """Write the steps of an interval that has not ended to the sinks, without an exchange, and close them."""
        steps = self.recorder.take()
        self.recorder.write(steps, [self.split(step) for step in steps])
        self.recorder.close()

    def split(self, step: Step) -> tuple[float, float, float]:
        """Return a step's seconds of compute, communication and input."""
        raise NotImplementedError
