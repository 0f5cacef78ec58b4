"""Exercise 20 on ranks whose files are kept by the last one: `Driver` calls a checkpointer, action by action.

    driven(actions, None, group)         on a rank: do actions; four weights are the number of the step
    driven([], server, group, disk)      on the last rank: keep the files, and return a log of all operations

Ranks of a check share no folder. What is saved in one call goes through the check to the ranks of the next one, as the
scenes of `serve`.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from labkit.course.phase4_production.checkpointing.given.storage_server import RemoteStorage, serve


class Driver:
    """Does actions with a checkpointer of some ranks: each is a method, of this class or else of the checkpointer."""

    def __init__(self, group: Any) -> None:
        """group: the ranks that train; the last rank of all keeps the files."""
        from labkit.exercises import checkpointing

        self.rank, self.group = dist.get_rank(), group
        self.storage = RemoteStorage(dist.get_world_size() - 1)
        self.checkpointer: Any = None
        self._module: Any = checkpointing

    def do(self, actions: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Do them one after another; return for each its result, or the error that it raises, and its warnings."""
        found = []
        for name, *more in actions:
            result: Any = None
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    result = (getattr(self, name, None) or getattr(self.checkpointer, name))(*more)
                except NotImplementedError:
                    raise  # a part that is not written yet is no answer
                except Exception as error:
                    result = f"{type(error).__name__}: {error}"
            found.append([result, [str(one.message) for one in caught]])
        self.storage.leave()
        return found

    def new(self, options: Mapping[str, Any]) -> None:
        """Begin with a new checkpointer."""
        self.checkpointer = self._module.DistributedCheckpointer(
            "run", storage=self.storage, group=self.group, **options
        )

    def sleep(self, seconds: Sequence[float]) -> None:
        """Let each rank sleep for its own time."""
        time.sleep(seconds[self.rank])

    def busy(self, steps: int) -> None:
        """Take steps of 0.1 s, in which threads go on."""
        for _ in range(steps):
            time.sleep(0.1)

    def scene(self, number: int) -> None:
        """Go on with other files."""
        dist.barrier(self.group)
        if self.rank == 0:
            self.storage.scene(number)
        dist.barrier(self.group)


class NumberedWeights(Driver):
    """Saves four weights, all of them the number of the step."""

    def __init__(self, group: Any) -> None:
        super().__init__(group)
        self.weights = torch.zeros(4)
        self.components = {"weights": self.weights}

    def train(self, number: float) -> None:
        """Set the weights."""
        self.weights.fill_(number)

    def save_checkpoint(self, step: int, *metrics: Any) -> str:
        """Return the folder."""
        self.weights.fill_(step)
        return str(self.checkpointer.save_checkpoint(step, self.components, *metrics))

    def save_async(self, step: int, *metrics: Any) -> float:
        """Return the seconds that it takes."""
        began = time.monotonic()
        self.weights.fill_(step)
        self.checkpointer.save_async(step, self.components, *metrics)
        return time.monotonic() - began

    def load_latest_checkpoint(self) -> list[Any]:
        """Return the step, and the weights, which are -1 before."""
        self.weights.fill_(-1)
        return [self.checkpointer.load_latest_checkpoint(self.components), self.weights.tolist()]

    def together(self, other: int) -> Any:
        """Divide by this rank's distance to another one."""
        return self.checkpointer.together(lambda: [self.rank, 6 // (self.rank - other)])

    def draw(self) -> list[float]:
        """Draw a number from each generator."""
        return [torch.rand(1).item(), float(np.random.rand()), random.random()]


def driven(actions: list[list[Any]], server: Any = None, group: Any = None, disk: Any = None) -> Any:
    """On a rank: do the actions, and return what comes of each.

    server: arguments of `serve`, on the last rank, which does that instead. disk: takes the time of a write.
    """
    if server is not None:
        return serve(dist.get_world_size() - 1, disk=disk, **server)
    return NumberedWeights(group).do(actions)
