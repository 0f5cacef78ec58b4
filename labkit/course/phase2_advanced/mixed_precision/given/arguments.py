"""Arguments of a training step in mixed precision, checked before any message is sent."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from labkit.course.arguments import number, one_of, optional, require, trained_module
from labkit.course.collective_arguments import require_this_rank
from labkit.course.phase1_data_parallel.trainer.given.arguments import inputs_and_targets, require_parameters_of
from labkit.course.phase2_advanced.mixed_precision.given.master_weights import HALVES, PairedOptimizer


def check_step(
    model: nn.Module,
    optimizer: Optimizer | PairedOptimizer,
    batch: tuple[Tensor, Tensor],
    dtype: torch.dtype,
    max_norm: float | None,
    group: ProcessGroup | None,
    *,
    scaled: bool,
) -> None:
    """Raise ValueError with name and value of an argument that cannot be used. Sends nothing.

    scaled: whether there is a scaler; unscaling takes gradients in float32.
    """
    require_this_rank(group)
    require("dtype", dtype, one_of(*HALVES, torch.float32))
    require("max_norm", max_norm, optional(number(above=0, infinite=True)))
    require("model", model, trained_module)
    trained = {id(p): p.dtype for p in model.parameters() if p.requires_grad}
    inner, pairs = (optimizer.optimizer, optimizer.pairs) if isinstance(optimizer, PairedOptimizer) else (optimizer, [])
    require_parameters_of([*model.parameters(), *(master for p, master in pairs if id(p) in trained)], inner)
    if scaled and torch.float16 in trained.values() and not pairs:
        raise ValueError("optimizer must be MasterWeights for parameters in torch.float16, got one of theirs")
    inputs_and_targets(batch)
