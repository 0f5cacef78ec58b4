"""Report of a training, and the whole model put together from the parts of all ranks."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.clusters.device import max_memory_allocated
from labkit.course.phase3_multi_node.parallel_3d.given import whole_layer
from labkit.course.phase4_production.llm_13b.given.text import held_out_loss, windows
from labkit.torch_versions.fake_tensors import FakeTensor


@dataclass
class Report:
    """A training on this rank."""

    first_step: int = 0
    """Steps that were done before, by an earlier attempt."""
    losses: dict[int, float] = field(default_factory=dict)
    """Mean loss of each step of this attempt, by its number from 0; empty on ranks without the last stage."""
    step_seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    """Most memory that this rank has held."""
    model: Any = None
    """The whole model, on every rank, if held-out text was read."""
    held_out_loss: float | None = None
    began: float = field(default_factory=time.perf_counter)
    """Time at which the running step began, by `time.perf_counter`."""

    def begin_step(self) -> None:
        """Take the time before a step."""
        self.began = time.perf_counter()

    def end_step(self, step: int, loss: Tensor | None) -> None:
        """Note a step's time, and its loss, None on ranks that do not have it. Fake tensors have no value."""
        self.step_seconds.append(time.perf_counter() - self.began)
        if loss is not None and not isinstance(loss, FakeTensor):
            self.losses[step] = float(loss)
        self.peak_bytes = max_memory_allocated()

    def finish(self, trainer: Any, held_out: int) -> Report:
        """Test the whole model on held-out text, each rank with a part of the windows. All ranks call this."""
        if held_out:
            self.model = whole_model(trainer)
            mine = windows(trainer.config.context, held_out)[dist.get_rank() :: dist.get_world_size()]
            sums = torch.zeros(2, dtype=torch.float64)
            if len(mine):
                sums += torch.tensor([held_out_loss(self.model, mine), 1.0]) * len(mine)
            dist.all_reduce(sums)
            self.held_out_loss = float(sums[0] / sums[1])
        return self


def whole_model(trainer: Any) -> nn.Sequential:
    """Return the model as one process has it, on every rank: embedding, blocks, head. All ranks call this."""
    whole = [[_plain(whole_layer(layer)) for layer in layers] for layers in trainer.layers]
    mine = [(stage.index, layers) for stage, layers in zip(trainer.stages, whole, strict=True)]
    everybody: list[Any] = [None] * trainer.mesh.sizes.pp
    dist.all_gather_object(everybody, mine, group=trainer.mesh.groups["pp"])
    stages = dict(stage for own in everybody for stage in own)
    return nn.Sequential(*[layer for index in sorted(stages) for layer in stages[index]])


def _plain(layer: Any) -> Any:
    """Return a whole layer without a wrapper, and with a copy of what it shares with others."""
    return copy.deepcopy(getattr(layer, "block", layer)).requires_grad_(False)
