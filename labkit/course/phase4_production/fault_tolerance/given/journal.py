"""The journal of a training: a line for each start and each step, in a file that outlives the ranks."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


class Step(NamedTuple):
    """A step that was done."""

    number: int
    """Number of the step, from 1."""
    loss: float
    """Mean over the global batch."""
    seconds: float
    """Time at which it was done, since 1970."""


@dataclass(frozen=True)
class Attempt:
    """One start of all ranks, until they finished or failed."""

    restarts: int
    """Number of restarts of this launch before it: `TORCHELASTIC_RESTART_COUNT`."""
    world_size: int
    first_step: int
    """Steps that were done in the checkpoint from which it began; 0 without one."""
    last_step: int
    """Steps that were done when it ended: it failed in the one after."""
    finished: bool


def restart_count() -> int:
    """Return how often the elastic agent has restarted this launch; 0 without an agent."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


class Journal:
    """Lines of JSON in the file `path`, written by rank 0 only; a line that a failure has cut is ignored."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def begin(self, world_size: int, step: int) -> None:
        """Record a start of all ranks, which continue after `step` steps."""
        self._append({"attempt": restart_count(), "world_size": world_size, "step": step})

    def record(self, step: int, epoch: int, loss: float) -> None:
        """Record that step number `step` is done, counted from 1, with the mean loss of its global batch."""
        self._append({"step": step, "epoch": epoch, "loss": loss, "seconds": time.time()})

    def finish(self) -> None:
        """Record that the training is complete."""
        self._append({"finished": True})

    def attempts(self) -> list[Attempt]:
        """Return all starts so far, in order."""
        attempts: list[Attempt] = []
        for line in self._lines():
            if "attempt" in line:
                attempts.append(Attempt(line["attempt"], line["world_size"], line["step"], line["step"], False))
            elif attempts:
                last = attempts[-1]
                step = line.get("step", last.last_step)
                attempts[-1] = Attempt(last.restarts, last.world_size, last.first_step, step, "finished" in line)
        return attempts

    def failures(self) -> list[Attempt]:
        """Return the attempts of this launch that have failed, the latest one last; none if this is its first start."""
        attempts: list[Attempt] = []
        for attempt in self.attempts() if restart_count() else []:
            attempts = [attempt] if attempt.restarts == 0 else [*attempts, attempt]
        return [attempt for attempt in attempts if not attempt.finished]

    def losses(self) -> dict[int, float]:
        """Return the loss of each step of the surviving trajectory, without those that a restart has undone."""
        losses: dict[int, float] = {}
        for line in self._lines():
            if "attempt" in line:
                losses = {step: loss for step, loss in losses.items() if step <= line["step"]}
            elif "loss" in line:
                losses[line["step"]] = line["loss"]
        return losses

    def steps_by_attempt(self) -> list[list[Step]]:
        """Return for each start its own steps, also those that a later start has undone."""
        by_attempt: list[list[Step]] = []
        for line in self._lines():
            if "attempt" in line:
                by_attempt.append([])
            elif "loss" in line and by_attempt:
                by_attempt[-1].append(Step(line["step"], line["loss"], line["seconds"]))
        return by_attempt

    def recovery_seconds(self) -> list[float]:
        """Return the seconds between the last step of each start and the first one of the next, if both have any."""
        steps = [own for own in self.steps_by_attempt() if own]
        return [after[0].seconds - before[-1].seconds for before, after in itertools.pairwise(steps)]

    def steps_lost(self) -> list[int]:
        """Return for each restart the number of steps that were done, and done again."""
        attempts = self.attempts()
        return [before.last_step - after.first_step for before, after in itertools.pairwise(attempts)]

    def _append(self, line: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # one write, which a SIGKILL does not split; a line that a lost node has split ends here
        text = ("" if self._ends_well() else "\n") + json.dumps(line) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def _ends_well(self) -> bool:
        try:
            with self.path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                return file.read() == b"\n"
        except OSError:  # missing or empty
            return True

    def _lines(self) -> Iterator[dict[str, Any]]:
        text = self.path.read_text() if self.path.exists() else ""
        for line in text.splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue
