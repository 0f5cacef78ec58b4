"""Arguments of fault-tolerant training, checked before any message is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

from labkit.course.arguments import Rule, function, integer, number, positive, require, torch_optimizer, trained_module
from labkit.course.phase4_production.fault_tolerance.given.global_batches import GlobalBatchSampler

_METHODS = ("should_checkpoint", "save_checkpoint", "save_async", "wait", "load_latest_checkpoint")
_CHECKPOINTER = Rule(
    "be a DistributedCheckpointer, or a folder",
    lambda value: hasattr(value, "checkpoint_dir") and all(callable(getattr(value, name, None)) for name in _METHODS),
)
_NO_FOLDER = Rule("be a DistributedCheckpointer to train", lambda value: not isinstance(value, (str, Path)))
_LOADER = Rule(
    "be a DataLoader whose batch_sampler is a GlobalBatchSampler",
    lambda value: isinstance(value, DataLoader) and isinstance(value.batch_sampler, GlobalBatchSampler),
)


def checkpoint_folder(checkpointer: Any, hang_timeout: Any) -> Path:
    """Return the folder of the checkpoints: that of a checkpointer, or the argument itself, where jobs are launched."""
    require("hang_timeout", hang_timeout, positive)
    if isinstance(checkpointer, (str, Path)):
        return Path(checkpointer)
    require("checkpointer", checkpointer, _CHECKPOINTER)
    return Path(checkpointer.checkpoint_dir)


def check_training(checkpointer: Any, model: Any, optimizer: Any, criterion: Any, loader: Any, num_epochs: Any) -> None:
    require("checkpointer", checkpointer, _NO_FOLDER)
    if not dist.is_initialized():
        raise ValueError("call torch.distributed.init_process_group() before training")
    require("model", model, trained_module)
    require("optimizer", optimizer, torch_optimizer)
    require("criterion", criterion, function("outputs and targets"))
    require("loader", loader, _LOADER)
    sampler, ranks = loader.batch_sampler, (dist.get_rank(), dist.get_world_size())
    if (sampler.rank, sampler.num_replicas) != ranks:
        raise ValueError(
            f"loader must have the batches of rank {ranks[0]} of {ranks[1]}, got those of rank {sampler.rank} of "
            f"{sampler.num_replicas}"
        )
    require("num_epochs", num_epochs, integer(at_least=0))


def check_failures(checkpoint_seconds: Any, gpu_mtbf_seconds: Any, num_gpus: Any) -> None:
    require("checkpoint_seconds", checkpoint_seconds, positive)
    require("gpu_mtbf_seconds", gpu_mtbf_seconds, positive)
    require("num_gpus", num_gpus, integer(at_least=1))


def check_goodput(
    interval_seconds: Any, checkpoint_seconds: Any, restart_seconds: Any, gpu_mtbf_seconds: Any, num_gpus: Any
) -> None:
    require("interval_seconds", interval_seconds, positive)
    require("checkpoint_seconds", checkpoint_seconds, number(at_least=0))
    require("restart_seconds", restart_seconds, number(at_least=0))
    require("gpu_mtbf_seconds", gpu_mtbf_seconds, positive)
    require("num_gpus", num_gpus, integer(at_least=1))
