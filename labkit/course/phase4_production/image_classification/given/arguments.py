"""Arguments of image classification, checked before any message is sent."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.course.arguments import integer, number, one_of, optional, positive, require, trained_module
from labkit.course.phase1_data_parallel.process_group.given import launchers
from labkit.course.phase3_multi_node.zero.given.arguments import require_shard_ranks

STRATEGIES = ("auto", "ddp", "fsdp", "hybrid")
SHARDED = ("fsdp", "hybrid")
"""Strategies whose ranks hold shards."""
PRECISIONS = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""dtypes to compute in, by their names at the shell; None: that of the weights."""
COMPRESSIONS = ("int8", "onebit", "powersgd", "topk")


def require_trainer(
    model: Any,
    strategy: Any,
    mixed_precision: Any,
    gradient_accumulation_steps: Any,
    gradient_clip_val: Any,
    cpu_offload: bool,
    compression: Any,
    ema_decay: Any,
    shard_ranks: Any,
) -> None:
    """Check the arguments of a `DistributedTrainer`."""
    if not dist.is_initialized():
        raise ValueError("there must be a process group, got none: setup_distributed of exercise 01 makes one")
    require("model", model, trained_module)
    require("strategy", strategy, one_of(*STRATEGIES))
    require("mixed_precision", mixed_precision, one_of(*PRECISIONS))
    require("gradient_accumulation_steps", gradient_accumulation_steps, integer(at_least=1))
    require("gradient_clip_val", gradient_clip_val, optional(positive))
    if isinstance(compression, str):
        require("compression", compression, one_of(*COMPRESSIONS))
    if compression is not None and strategy in SHARDED:
        why = f"with strategy {strategy!r}, which reduces shards"
        raise ValueError(f"compression must be None {why}, got {compression!r}")
    if shard_ranks is not None and strategy != "hybrid":
        raise ValueError(f"shard_ranks must be None with strategy {strategy!r}, it is of 'hybrid', got {shard_ranks!r}")
    shard_ranks_of(strategy, shard_ranks, dist.get_world_size())
    if cpu_offload and strategy not in SHARDED:
        reason = "has no shards" if strategy == "ddp" else "decides itself"
        raise ValueError(f"cpu_offload must be False with strategy {strategy!r}, which {reason}, got {cpu_offload!r}")
    require("ema_decay", ema_decay, optional(number(above=0, below=1)))


def shard_ranks_of(strategy: str, shard_ranks: int | None, world_size: int) -> int:
    """Return the number of ranks that have a model in shards together; `shard_ranks` None: with "hybrid", a node's.

    Raises ValueError if the ranks cannot be cut into such groups.
    """
    if strategy != "hybrid":
        return world_size
    ranks = launchers.ranks_on_machine() or world_size if shard_ranks is None else shard_ranks
    require_shard_ranks(ranks, world_size)
    return ranks


def check_memory(num_parameters: Any, num_gpus: Any, memory_gb: Any, **at_least_0: float) -> None:
    """Check the arguments of `choose_strategy`."""
    require("num_parameters", num_parameters, integer(at_least=1))
    require("num_gpus", num_gpus, integer(at_least=1))
    require("memory_gb", memory_gb, positive)
    for name, value in at_least_0.items():
        require(name, value, number(at_least=0, infinite=True))


def require_batch(batch: Any, steps: int) -> None:
    """Check that a batch has a sample for each microbatch."""
    inputs, targets = batch
    if not isinstance(targets, Tensor) or len(targets) < steps or len(inputs) != len(targets):
        raise ValueError(
            f"batch must have a sample or more for each of {steps} microbatches, and a target for each sample; got "
            f"{len(inputs)} inputs and {len(targets)} targets"
        )


def require_recipe(batch_size: Any, epochs: Any, learning_rate: Any, warmup_epochs: Any, base_batch_size: Any) -> None:
    """Check the arguments of an `ImageTrainer`."""
    require("batch_size", batch_size, integer(at_least=1))
    require("epochs", epochs, integer(at_least=1))
    require("learning_rate", learning_rate, positive)
    require("base_batch_size", base_batch_size, integer(at_least=1))
    require("warmup_epochs", warmup_epochs, number(at_least=0, below=epochs))
