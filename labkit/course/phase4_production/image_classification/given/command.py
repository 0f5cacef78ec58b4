"""The command that trains an image classifier: `torchrun ... image_classification.py --strategy auto --data FOLDER`."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from labkit.course.phase4_production.image_classification.given.arguments import COMPRESSIONS, PRECISIONS, STRATEGIES
from labkit.course.phase4_production.image_classification.given.memory import (
    activation_gb,
    device_memory_gb,
    optimizer_bytes,
    unit_gb,
)
from labkit.data import image_sets
from labkit.models import IMAGE_MODELS, image_model


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    made = argparse.ArgumentParser(
        prog="image_classification", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = made.add_argument
    add("--strategy", choices=STRATEGIES, default="auto", help="auto: the fastest one that fits into memory")
    add("--model", choices=IMAGE_MODELS, default="resnet8")
    add("--data", default="digits", help="digits, or a folder with train/CLASS/ and val/CLASS/")
    add("--image-size", type=int, default=224, help="height and width to which images of a folder are scaled")
    add("--epochs", type=int, default=8)
    add("--batch-size", type=int, default=32, help="of each rank, in each step")
    add("--auto-batch-size", action="store_true", help="the largest power of two that fits, instead of --batch-size")
    add("--gradient-accumulation", type=int, default=1, metavar="STEPS", help="microbatches in each step")
    add("--lr", type=float, default=0.03, help="for a global batch of 256; in proportion to the global batch")
    add("--optimizer", choices=("adamw", "sgd"), default="adamw")
    add("--weight-decay", type=float, default=0.05)
    add("--warmup-epochs", type=float, default=1.0)
    add("--label-smoothing", type=float, default=0.1)
    add("--ema", type=float, default=0.95, metavar="DECAY", help="of the average of weights that is tested; 0: none")
    add("--mixed-precision", choices=PRECISIONS, default="no")
    add("--gradient-clip", type=float, default=None, metavar="NORM")
    add("--activation-checkpointing", action="store_true")
    add("--cpu-offload", action="store_true", help="parameters and optimizer in host memory, with fsdp")
    add("--compression", choices=COMPRESSIONS, default=None, help="of gradients, with ddp")
    add("--deepspeed", default=None, metavar="FILE", help="DeepSpeed trains, as this configuration of its says")
    add("--checkpoint-dir", default=None)
    add("--checkpoint-minutes", type=float, default=30.0, help="between checkpoints within an epoch")
    add("--log-dir", default=None, help="for metrics.json and the monitor's log")
    add("--resume", action="store_true", help="from the latest checkpoint in --checkpoint-dir")
    add("--workers", type=int, default=0, help="processes that decode images, for each rank")
    add("--seed", type=int, default=0)
    return made


def main(process_group: Any, trainer: Any, image_trainer: Any, words: Sequence[str] | None = None) -> dict[str, Any]:
    """Train as the options say; return what `fit` returns, and print it on the first rank.

    process_group: the module of exercise 01. trainer, image_trainer: `DistributedTrainer` and `ImageTrainer`.
    """
    options = parser().parse_args(words)
    if options.resume and options.checkpoint_dir is None:
        parser().error("--resume needs --checkpoint-dir")
    before = dist.is_initialized()
    device = process_group.setup_distributed(config_of(process_group.DDPConfig))
    torch.manual_seed(options.seed + 1_000_003 * dist.get_rank())
    images = image_sets(options.data, options.image_size, options.seed)
    model = image_model(options.model, images.channels, images.size, images.classes)
    if options.deepspeed is not None:
        made = _deepspeed_trainer(model, trainer.monitor_type, device, options)
        return _train(process_group, made, image_trainer, images, options, before)
    make_optimizer = optimizer_maker(options)
    sample_gb = activation_gb(model, (images.channels, images.size, images.size), options.activation_checkpointing)
    if options.auto_batch_size:
        options.batch_size = fitting_batch_size(model, sample_gb, device, make_optimizer, options)
    made = trainer(
        model,
        options.strategy,
        options.mixed_precision,
        options.gradient_accumulation,
        options.gradient_clip,
        options.activation_checkpointing,
        options.cpu_offload,
        options.compression,
        options.checkpoint_dir,
        options.log_dir,
        make_optimizer=make_optimizer,
        loss_fn=partial(F.cross_entropy, label_smoothing=options.label_smoothing),
        ema_decay=options.ema or None,
        device=device,
        activation_gb=sample_gb * -(-options.batch_size // options.gradient_accumulation),
        checkpoint_minutes=options.checkpoint_minutes,
    )
    return _train(process_group, made, image_trainer, images, options, before)


def _deepspeed_trainer(
    model: torch.nn.Module, monitor_type: Any, device: torch.device, options: argparse.Namespace
) -> Any:
    from labkit.course.phase4_production.image_classification.given.deepspeed_trainer import (
        DeepSpeedTrainer,
        deepspeed_config,
    )

    try:
        config = deepspeed_config(options.deepspeed, options.batch_size, options.lr)
    except (OSError, ValueError) as error:
        parser().error(str(error))
    monitor = monitor_type(dist.get_rank(), dist.get_world_size(), log_dir=options.log_dir, device=device)
    loss = partial(F.cross_entropy, label_smoothing=options.label_smoothing)
    return DeepSpeedTrainer(
        model, config, loss, monitor, device, options.checkpoint_dir, options.log_dir, options.checkpoint_minutes
    )


def _train(
    process_group: Any, made: Any, image_trainer: Any, images: Any, options: argparse.Namespace, before: bool
) -> dict[str, Any]:
    """Train with a trainer. before: whether there was a process group already."""
    recipe = image_trainer(
        made,
        images,
        options.batch_size,
        options.epochs,
        options.lr,
        warmup_epochs=min(options.warmup_epochs, options.epochs / 2),
        workers=options.workers,
        seed=options.seed,
    )
    report: dict[str, Any] = recipe.fit(resume=options.resume)
    made.close()
    if dist.get_rank() == 0:
        print(json.dumps(report))
    if not before:
        process_group.cleanup()
    return report


def optimizer_maker(options: argparse.Namespace) -> Callable[..., Any]:
    """Return the function that makes the optimizer of parameters."""
    if options.optimizer == "adamw":
        return partial(torch.optim.AdamW, lr=options.lr, weight_decay=options.weight_decay)
    return partial(torch.optim.SGD, lr=options.lr, momentum=0.9, nesterov=True, weight_decay=options.weight_decay)


def fitting_batch_size(
    model: torch.nn.Module, sample_gb: float, device: torch.device, make_optimizer: Any, options: Any
) -> int:
    """Return the largest power of two whose activations fit beside the states of the strategy; 1024 at most.

    With "auto" that is beside whole states if at least 8 samples fit there, else beside shards.
    """
    memory, parameters = device_memory_gb(device), sum(parameter.numel() for parameter in model.parameters())
    state_bytes = optimizer_bytes(make_optimizer, options.ema > 0)
    whole = parameters * (12 + state_bytes) / 1e9
    sharded = parameters * (8 + state_bytes) / dist.get_world_size() / 1e9 + 3 * unit_gb(model)
    if options.cpu_offload:
        sharded = 3 * unit_gb(model)
    room = memory - (whole if options.strategy != "fsdp" else sharded)
    if options.strategy == "auto" and room < 8 * sample_gb:
        room = memory - sharded
    samples = room / sample_gb * options.gradient_accumulation if sample_gb else 1024
    if samples < 1:
        raise ValueError(f"no batch fits: {memory:.3g} GB for {parameters:,} parameters and their states")
    return min(1024, 1 << (int(samples).bit_length() - 1))


def config_of(config: Any) -> Any:
    """Return exercise 01's `DDPConfig` from the environment; without a launcher, that of a single rank."""
    if "RANK" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ:
        return config.from_env()
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return config(backend=backend, init_method=f"file://{folder}/store", world_size=1, rank=0, local_rank=0)
