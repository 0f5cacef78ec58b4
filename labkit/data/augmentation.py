"""Images that look different in each epoch, by random numbers that depend on nothing but seed, epoch and index.

So a training that resumes within an epoch, on any number of ranks, sees what the uninterrupted one sees, and no worker
process of a loader draws from a generator of its own.
"""

from __future__ import annotations

from typing import Any

import torch


class Augmentation:
    """Base of data sets that draw: `set_epoch` before each epoch, `generator(index)` for the draws of a sample."""

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Draw what belongs to this epoch from now on."""
        self.epoch = epoch

    def generator(self, index: int) -> torch.Generator:
        """Return the generator of one sample in this epoch."""
        # hash() of integers is the same in every process
        return torch.Generator().manual_seed(hash((self.seed, self.epoch, index)) % (1 << 63))


def set_epoch(dataset: Any, epoch: int) -> None:
    """Tell a data set which epoch begins, if it draws."""
    if isinstance(dataset, Augmentation):
        dataset.set_epoch(epoch)
