"""A running training: what its ranks agree on after each step, and how it ends before its last one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist

from labkit.course.phase4_production.checkpointing.given import agreement
from labkit.course.training_run.console import Console
from labkit.course.training_run.options import KEEP, RunRefused, may_restart
from labkit.torch_versions.dispatch import no_modes

TERMINATED = 128 + signal.SIGTERM
"""Exit status after SIGTERM, as a shell's: whoever starts jobs again sees that this one has not finished."""
_TIMEOUT_SECONDS = 1800.0


class TrainingEnds(Exception):
    """Ends a training on all ranks after the same step. The message is a line for the console.

    status: exit status of the program. report: what the training returns, if it has one.
    """

    def __init__(self, text: str, status: int = 0, report: Any = None) -> None:
        super().__init__(text)
        self.status, self.report = status, report


class TrainingRun:
    """A training on the ranks of the default group, all of which make one.

    keep: number of checkpoints to keep. saves: whether there is a checkpoint folder, so that SIGTERM can be heeded.
    """

    def __init__(self, keep: int = KEEP, saves: bool = False) -> None:
        self.console, self.keep = Console(False), keep
        self.save: Callable[[int], Any] | None = None
        """Saves a checkpoint after a step, where the training loop itself does not."""
        self.plan: Any = None
        """Plan of the training, where there is one."""
        self.resumes = False
        """Whether there is a checkpoint to go on from."""
        self._group = agreement.own_group(None, _TIMEOUT_SECONDS)
        self._saves, self._terminated = saves, False
        self.heeds_signals = False
        """Whether SIGTERM lets the training save and end, on all ranks alike."""

    def together(self, action: Callable[[], Any]) -> Any:
        """Call `action` on the first rank; return what it returns, plain data, on all. All raise its `RunRefused`."""
        result, problem = None, None
        if dist.get_rank() == 0:
            try:
                result = action()
            except RunRefused as error:
                problem = str(error)
            except OSError as error:
                problem = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        result, problem = self.exchange([result, problem])[0]
        if problem is not None:
            raise RunRefused(problem)
        return result

    def exchange(self, value: Any) -> list[Any]:
        """Return the values of all ranks, plain data, in their order."""
        return agreement.exchange(value, self._group)

    def sums(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all ranks of a few numbers. One small message, on the CPU."""
        with no_modes():  # real numbers, also where a program computes with fake tensors
            total = torch.tensor(values, dtype=torch.float64, device="cpu")
            dist.all_reduce(total, group=self._group)
            summed: list[float] = total.tolist()
        return summed

    @property
    def is_terminated(self) -> bool:
        """Whether this rank has received SIGTERM."""
        return self._terminated

    @contextmanager
    def console_on(self, log_file: str | None) -> Iterator[Console]:
        """Within the context, the run has a console. Raises `RunRefused` on all ranks if the file cannot be opened."""

        def make() -> None:
            self.console = Console(True, log_file)

        self.together(make)
        try:
            yield self.console
        finally:
            self.console.close()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within the context, this is the rank's `current_run`, and SIGTERM waits for the end of the step.

        Not where an agent may start the ranks again: it sends SIGTERM to those that wait for a lost one, whose step
        never ends.
        """
        # signals reach a process, and virtual ranks are threads of one
        own = threading.current_thread() is threading.main_thread() and not may_restart()
        self.heeds_signals = self._saves and all(self.exchange(own))
        token = _CURRENT.set(self)
        before = signal.signal(signal.SIGTERM, self._note) if self.heeds_signals else None
        try:
            yield
        finally:
            _CURRENT.reset(token)
            if self.heeds_signals:
                signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)

    def _note(self, *_: object) -> None:
        """Handle SIGTERM; a second one ends the process at once."""
        self._terminated = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


_CURRENT: ContextVar[TrainingRun | None] = ContextVar("current training run", default=None)


def current_run() -> TrainingRun | None:
    """Return the run of this rank's program, None outside of one."""
    return _CURRENT.get()
