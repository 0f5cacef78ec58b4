"""Argument checks of image classification. Each raises `ValueError` with the argument's name; none sends anything."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.course.number_arguments import require_integer, require_positive

STRATEGIES = ("auto", "ddp", "fsdp")
PRECISIONS = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""dtypes to compute in, by their names at the shell; None: that of the weights."""
COMPRESSIONS = ("int8", "onebit", "powersgd", "topk")


def check_trainer(
    model: Any,
    strategy: Any,
    mixed_precision: Any,
    gradient_accumulation_steps: Any,
    gradient_clip_val: Any,
    cpu_offload: bool,
    compression: Any,
    ema_decay: Any,
) -> None:
    """Check the arguments of a `DistributedTrainer`."""
    if not dist.is_initialized():
        raise ValueError("there must be a process group, got none: setup_distributed of exercise 01 makes one")
    if not isinstance(model, nn.Module) or not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"model must be a module with a parameter that is trained, got {type(model).__name__}")
    _require_known("strategy", strategy, STRATEGIES)
    _require_known("mixed_precision", mixed_precision, PRECISIONS)
    require_integer("gradient_accumulation_steps", gradient_accumulation_steps, at_least=1)
    if gradient_clip_val is not None:
        require_positive("gradient_clip_val", gradient_clip_val)
    if isinstance(compression, str):
        _require_known("compression", compression, COMPRESSIONS)
    if compression is not None and strategy == "fsdp":
        raise ValueError(f"compression must be None with strategy 'fsdp', which reduces shards, got {compression!r}")
    if cpu_offload and strategy == "ddp":
        raise ValueError(f"cpu_offload must be False with strategy 'ddp', which has no shards, got {cpu_offload!r}")
    if ema_decay is not None:
        require_share("ema_decay", ema_decay)


def check_memory(num_parameters: Any, num_gpus: Any, memory_gb: Any, **at_least_0: float) -> None:
    """Check the arguments of `choose_strategy`."""
    require_integer("num_parameters", num_parameters, at_least=1)
    require_integer("num_gpus", num_gpus, at_least=1)
    require_positive("memory_gb", memory_gb)
    for name, value in at_least_0.items():
        if not value >= 0:
            raise ValueError(f"{name} must be a number of 0 or more, got {value!r}")


def check_batch(batch: Any, steps: int) -> None:
    """Check that a batch has a sample for each microbatch."""
    inputs, targets = batch
    if not isinstance(targets, Tensor) or len(targets) < steps or len(inputs) != len(targets):
        raise ValueError(
            f"batch must have a sample or more for each of {steps} microbatches, and a target for each sample; got "
            f"{len(inputs)} inputs and {len(targets)} targets"
        )


def check_recipe(batch_size: Any, epochs: Any, learning_rate: Any, warmup_epochs: Any, base_batch_size: Any) -> None:
    """Check the arguments of an `ImageTrainer`."""
    require_integer("batch_size", batch_size, at_least=1)
    require_integer("epochs", epochs, at_least=1)
    require_positive("learning_rate", learning_rate)
    require_integer("base_batch_size", base_batch_size, at_least=1)
    if not 0 <= warmup_epochs < epochs:
        raise ValueError(f"warmup_epochs must be from 0 to below epochs={epochs}, got {warmup_epochs!r}")


def require_share(name: str, value: Any) -> None:
    """Raise ValueError unless the argument is above 0 and below 1."""
    if not isinstance(value, float) or not 0 < value < 1:
        raise ValueError(f"{name} must be between 0 and 1, got {value!r}")


def _require_known(name: str, value: Any, known: Any) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
