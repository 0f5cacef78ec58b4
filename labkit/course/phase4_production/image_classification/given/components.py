"""Components of a checkpoint that differ among ranks, or that belong to no module: made alike, and saved."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.course.phase3_multi_node.gradient_compression.given.compressor import Compressor


@torch.no_grad()
def average_over_ranks(tensors: Iterable[Tensor]) -> None:
    """Replace floating-point tensors by their means over the ranks, in one all-reduce for each dtype."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.is_floating_point():
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
    for alike in by_dtype.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])
        dist.all_reduce(flat.div_(dist.get_world_size()))
        for tensor, part in zip(alike, flat.split([member.numel() for member in alike]), strict=True):
            tensor.copy_(part.view(tensor.shape))


class CompressorState:
    """A compressor's residuals. Each rank has its own, but only their mean reaches the weights: `make_alike` puts it in
    their place, so that any number of ranks can go on with it."""

    def __init__(self, compressor: Compressor, device: torch.device) -> None:
        self.compressor, self.device = compressor, device

    def make_alike(self) -> None:
        """Give all ranks the mean of their residuals, before each save."""
        average_over_ranks(tensor for name in sorted(self.compressor.state) for tensor in self._tensors(name))

    def _tensors(self, name: str) -> list[Tensor]:
        return [value for value in self.compressor.state[name].values() if isinstance(value, Tensor)]

    def state_dict(self) -> dict[str, Any]:
        return self.compressor.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.compressor.load_state_dict(dict(state))
        for own in self.compressor.state.values():
            own.update({key: value.to(self.device) for key, value in own.items() if isinstance(value, Tensor)})


class Progress:
    """Position of a training: plain numbers by name, and a sampler's position without what a loader has read ahead."""

    def __init__(self, sampler: Any) -> None:
        self.sampler, self.taken = sampler, 0
        self.epoch, self.best = 0, -1.0
        """Number of the epoch under way; best top-1 accuracy so far."""
        self._seconds, self._began = 0.0, time.perf_counter()

    @property
    def seconds(self) -> float:
        """Time of the training so far: of this attempt, and of earlier ones up to the checkpoint that was loaded."""
        return self._seconds + time.perf_counter() - self._began

    def begin_attempt(self) -> None:
        """Count the time of this attempt from now on."""
        self._began = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        position = self.sampler.state_dict(taken=self.taken)
        return {"epoch": self.epoch, "best": self.best, "seconds": self.seconds, "sampler": position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.best, self.taken = state["epoch"], state["best"], 0
        self._seconds = state.get("seconds", 0.0)  # older checkpoints have none
        self.sampler.load_state_dict(state["sampler"])
