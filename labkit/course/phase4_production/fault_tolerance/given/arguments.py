"""Argument checks of fault-tolerant training: `ValueError` with the argument's name, before any communication."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from labkit.course.number_arguments import require_integer, require_positive
from labkit.course.phase4_production.fault_tolerance.given.global_batches import GlobalBatchSampler

_METHODS = ("should_checkpoint", "save_checkpoint", "save_async", "wait", "load_latest_checkpoint")


def checkpoint_folder(checkpointer: Any, hang_timeout: Any) -> Path:
    """Return the folder of the checkpoints: that of a checkpointer, or the argument itself, where jobs are launched."""
    require_positive("hang_timeout", hang_timeout)
    if isinstance(checkpointer, (str, Path)):
        return Path(checkpointer)
    missing = [name for name in _METHODS if not callable(getattr(checkpointer, name, None))]
    if missing or not hasattr(checkpointer, "checkpoint_dir"):
        raise ValueError(f"checkpointer must be a DistributedCheckpointer, or a folder, got {checkpointer!r}")
    return Path(checkpointer.checkpoint_dir)


def check_training(checkpointer: Any, model: Any, optimizer: Any, criterion: Any, loader: Any, num_epochs: Any) -> None:
    if isinstance(checkpointer, (str, Path)):
        raise ValueError(
            f"checkpointer must be a DistributedCheckpointer to train, got the folder {str(checkpointer)!r}"
        )
    if not dist.is_initialized():
        raise ValueError("call torch.distributed.init_process_group() before training")
    if not isinstance(model, nn.Module) or not any(p.requires_grad for p in model.parameters()):
        raise ValueError(f"model must be a module with parameters that are trained, got {model!r}"[:300])
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"optimizer must be an optimizer, got {optimizer!r}")
    if not callable(criterion):
        raise ValueError(f"criterion must be a function of outputs and targets, got {criterion!r}")
    sampler = getattr(loader, "batch_sampler", None)
    if not isinstance(loader, DataLoader) or not isinstance(sampler, GlobalBatchSampler):
        raise ValueError(f"loader must be a DataLoader whose batch_sampler is a GlobalBatchSampler, got {loader!r}")
    ranks = dist.get_rank(), dist.get_world_size()
    if (sampler.rank, sampler.num_replicas) != ranks:
        raise ValueError(
            f"loader must have the batches of rank {ranks[0]} of {ranks[1]}, got those of rank {sampler.rank} of "
            f"{sampler.num_replicas}"
        )
    require_integer("num_epochs", num_epochs, at_least=0)


def check_failures(checkpoint_seconds: Any, gpu_mtbf_seconds: Any, num_gpus: Any) -> None:
    require_positive("checkpoint_seconds", checkpoint_seconds)
    require_positive("gpu_mtbf_seconds", gpu_mtbf_seconds)
    require_integer("num_gpus", num_gpus, at_least=1)


def check_goodput(
    interval_seconds: Any, checkpoint_seconds: Any, restart_seconds: Any, gpu_mtbf_seconds: Any, num_gpus: Any
) -> None:
    require_positive("interval_seconds", interval_seconds)
    for name, value in (("checkpoint_seconds", checkpoint_seconds), ("restart_seconds", restart_seconds)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a number from 0, got {value!r}")
    require_positive("gpu_mtbf_seconds", gpu_mtbf_seconds)
    require_integer("num_gpus", num_gpus, at_least=1)
