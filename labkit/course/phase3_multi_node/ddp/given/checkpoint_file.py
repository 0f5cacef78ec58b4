"""Base of exercise 11's `DDPCheckpointer`: a file that one rank writes and reads for all."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from labkit.course.phase3_multi_node.ddp.given.agreement import done_by_first_rank
from labkit.course.phase3_multi_node.ddp.given.arguments import require_path


class CheckpointFile:
    """Base of `DDPCheckpointer`. Only the group's first rank uses the file, so ranks need not share a file system."""

    def __init__(self, path: str | os.PathLike[str], group: ProcessGroup | None = None) -> None:
        self.path, self.group = require_path(path), group

    def save(self, model: nn.Module, optimizer: Optimizer, **more: Any) -> None:
        """Write the state of both, and `more`: numbers, texts, tensors, and lists and dicts of them.

        Call it on every rank; it returns when the file is complete. If writing fails, every rank raises the error.
        """

        def write() -> None:
            self.write({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **more})
            # a new file name is on the disk only when its folder is synced
            folder = os.open(os.path.dirname(os.path.abspath(self.path)), os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

        done_by_first_rank(write, self.group)

    def write(self, state: dict[str, Any]) -> None:
        """Write the state to `self.path`."""
        raise NotImplementedError

    def load(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Load both on every rank, and return `more` of `save`. The model may be wrapped or not, whatever was saved.

        The first rank reads the file and sends it. If reading fails, every rank raises the error.
        """
        state: dict[str, Any] = done_by_first_rank(lambda: torch.load(self.path, map_location="cpu"), self.group)
        model.load_state_dict(state.pop("model"))
        optimizer.load_state_dict(state.pop("optimizer"))
        return state
