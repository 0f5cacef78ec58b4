"""The command that trains an image classifier: `torchrun ... image_classification.py --strategy auto --data FOLDER`."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from labkit.course.arguments import integer, number, positive
from labkit.course.phase1_data_parallel.process_group.given import launchers
from labkit.course.phase4_production.checkpointing.given.errors import CheckpointError
from labkit.course.phase4_production.image_classification.given.arguments import (
    COMPRESSIONS,
    PRECISIONS,
    SHARDED,
    STRATEGIES,
    shard_ranks_of,
)
from labkit.course.phase4_production.image_classification.given.memory import (
    activation_gb,
    device_memory_gb,
    optimizer_bytes,
    unit_gb,
)
from labkit.course.phase4_production.monitoring.given.metrics import Metrics, PortInUse, add_options
from labkit.course.training_run.console import ranks_text
from labkit.course.training_run.folders import Begun, Folders
from labkit.course.training_run.options import (
    ProgramParser,
    RunRefused,
    add_run_options,
    checked,
    is_restart,
    refuse,
    refuse_on_this_rank,
    require_run_options,
)
from labkit.course.training_run.run import TrainingEnds, TrainingRun
from labkit.data import ImageSets, image_sets
from labkit.models import IMAGE_MODELS, image_model

STEPS_PER_EPOCH = 20
"""Steps of an epoch that --auto-batch-size leaves at least: a few large steps an epoch learn little."""
_FIXED = ("model", "optimizer", "seed", "compression", "deepspeed", "channels", "classes")
"""What a checkpoint cannot be loaded without, or what would make another training of it."""
_CHANGEABLE = (
    "data", "image_size", "ema", "mixed_precision", "epochs", "batch_size", "auto_batch_size",
    "gradient_accumulation", "lr", "weight_decay", "warmup_epochs", "label_smoothing", "gradient_clip", "strategy",
    "shard_ranks", "activation_checkpointing", "cpu_offload",
)  # fmt: skip
"""Options that decide how the training goes: a resumed run names those that differ."""
_DEEPSPEED_DECIDES = (
    "strategy", "shard_ranks", "auto_batch_size", "gradient_accumulation", "optimizer", "weight_decay", "ema",
    "mixed_precision", "gradient_clip", "activation_checkpointing", "cpu_offload", "compression", "keep",
)  # fmt: skip
_from_1, _from_0 = checked(int, integer(at_least=1)), checked(int, integer(at_least=0))
_above_0, _at_least_0 = checked(float, positive), checked(float, number(at_least=0))
_share = checked(float, number(at_least=0, below=1))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options for training."""
    made = ProgramParser(
        prog="image_classification",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog="From a checkpoint: evaluate --help, export --help.",
    )
    add = made.add_argument
    add("--strategy", choices=STRATEGIES, default="auto", help="auto: the fastest one that fits into memory")
    add(
        "--shard-ranks",
        type=_from_1,
        default=None,
        metavar="N",
        help="of hybrid: ranks that share a model, or a node's",
    )
    add("--model", choices=IMAGE_MODELS, default="resnet8")
    add("--data", default="digits", help="digits, or a folder with train/CLASS/ and val/CLASS/")
    add("--image-size", type=_from_1, default=224, help="height and width to which images of a folder are scaled")
    add("--bad-images", type=_from_0, default=0, metavar="N", help="of a folder, that may be skipped; each is named")
    add("--epochs", type=_from_1, default=8)
    add("--target-accuracy", type=checked(float, number(above=0, at_most=1)), default=None, metavar="TOP1",
        help="end with the epoch that reaches this share, and log the seconds")  # fmt: skip
    add("--batch-size", type=_from_1, default=32, help="of each rank, in each step")
    add(
        "--auto-batch-size",
        action="store_true",
        help=f"the largest power of two that fits, with {STEPS_PER_EPOCH} steps in an epoch, instead of --batch-size",
    )
    add("--gradient-accumulation", type=_from_1, default=1, metavar="STEPS", help="microbatches in each step")
    add("--lr", type=_above_0, default=0.03, help="for a global batch of 256; in proportion to the global batch")
    add("--optimizer", choices=("adamw", "sgd"), default="adamw")
    add("--weight-decay", type=_at_least_0, default=0.05)
    add("--warmup-epochs", type=_at_least_0, default=1.0, help="at most half of the epochs")
    add("--label-smoothing", type=_share, default=0.1)
    add("--ema", type=_share, default=0.95, metavar="DECAY", help="of the average of weights that is tested; 0: none")
    add("--mixed-precision", choices=PRECISIONS, default="no")
    add("--gradient-clip", type=_above_0, default=None, metavar="NORM")
    add("--activation-checkpointing", action="store_true")
    add("--cpu-offload", action="store_true", help="parameters and optimizer in host memory, with fsdp or hybrid")
    add("--compression", choices=COMPRESSIONS, default=None, help="of gradients, with ddp")
    add("--deepspeed", default=None, metavar="FILE", help="DeepSpeed trains, as this configuration of its says")
    add_run_options(add)
    add("--checkpoint-minutes", type=_above_0, default=30.0, help="between checkpoints within an epoch")
    add_options(add)
    add("--workers", type=_from_0, default=0, help="processes that decode images, for each rank")
    add("--seed", type=_from_0, default=0)
    return made


def require_options(options: argparse.Namespace) -> None:
    """Raise `RunRefused` for options that do not go together. Looks at no file."""
    require_run_options(options)
    default = parser().parse_args([])
    changed = {name for name, value in vars(default).items() if getattr(options, name) != value}
    if options.deepspeed is not None and (ignored := [name for name in _DEEPSPEED_DECIDES if name in changed]):
        raise RunRefused(f"--deepspeed decides by its file about {_flag(ignored[0])}: leave that out")
    if options.cpu_offload and options.strategy not in SHARDED:
        raise RunRefused(f"--cpu-offload needs --strategy {' or '.join(SHARDED)}, got {options.strategy}")
    if options.compression is not None and options.strategy in SHARDED:
        raise RunRefused(f"--compression needs --strategy ddp, which reduces whole gradients, got {options.strategy}")
    if options.shard_ranks is not None and options.strategy != "hybrid":
        raise RunRefused(f"--shard-ranks needs --strategy hybrid, got {options.strategy}")
    if options.auto_batch_size and "batch_size" in changed:
        raise RunRefused("--auto-batch-size finds what --batch-size sets: give one of them")
    if options.batch_size < options.gradient_accumulation and not options.auto_batch_size:
        raise RunRefused(
            f"--batch-size {options.batch_size} has no sample for each microbatch of "
            f"--gradient-accumulation {options.gradient_accumulation}"
        )
    if options.data == "digits" and (of_folders := [one for one in ("image_size", "bad_images") if one in changed]):
        raise RunRefused(f"{_flag(of_folders[0])} is for a folder of images: --data FOLDER")
    if "checkpoint_minutes" in changed and options.checkpoint_dir is None:
        raise RunRefused("--checkpoint-minutes needs --checkpoint-dir")


def require_files(options: argparse.Namespace) -> None:
    """Raise `RunRefused` if the data are missing, or a folder has an earlier run, on this machine."""
    for part in ("train", "val"):
        if options.data != "digits" and not (folder := Path(options.data) / part).is_dir():
            raise RunRefused(f"--data {options.data}: there is no folder {folder}")
    if not options.resume and not options.overwrite:
        _folders(options).require_unused()


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def images_of(options: argparse.Namespace) -> ImageSets:
    """Return the images that the options name. Raises `RunRefused`."""
    try:
        return image_sets(options.data, options.image_size, options.seed, skip_unreadable=True)
    except (ValueError, OSError) as error:
        raise RunRefused(f"--data {options.data}: {error}") from None


def _folders(options: argparse.Namespace) -> Folders:
    return Folders(options.checkpoint_dir, Metrics.folders(options), options.log_file)


def main(process_group: Any, trainer: Any, image_trainer: Any, words: Sequence[str] | None = None) -> dict[str, Any]:
    """Train as the options say; return what `fit` returns, and print it on the first rank.

    process_group: the module of exercise 01. trainer, image_trainer: `DistributedTrainer` and `ImageTrainer`. Exits
    with status 2 and one line for wrong arguments, with 143 after SIGTERM.
    """
    options = parser().parse_args(words)
    try:
        require_options(options)
        metrics = Metrics.of(options)
        images = images_of(options)
    except PortInUse as error:
        refuse_on_this_rank(f"image_classification: {error}")
    except ValueError as error:
        parser().error(str(error))
    before = dist.is_initialized()
    device = process_group.setup_distributed(config_of(process_group.DDPConfig))

    def leave() -> None:
        if not before:
            process_group.cleanup()

    try:
        report = _train(trainer, image_trainer, images, metrics, device, options)
    except RunRefused as error:  # as the next two, on all ranks alike
        leave()
        refuse(f"image_classification: {error}")
    except CheckpointError as error:
        leave()
        if os.environ.get("RANK", "0") == "0":
            print(f"image_classification: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except TrainingEnds as end:
        leave()
        raise SystemExit(end.status) from None
    leave()
    return report


def _train(
    trainer: Any, image_trainer: Any, images: ImageSets, metrics: Metrics, device: torch.device, options: Any
) -> dict[str, Any]:
    """Train on the ranks of the group that there is. Raises `RunRefused`, `CheckpointError` and `TrainingEnds`."""
    torch.manual_seed(options.seed + 1_000_003 * dist.get_rank())
    model = image_model(options.model, images.channels, images.size, images.classes)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    run, folders = TrainingRun(options.keep, saves=options.checkpoint_dir is not None), _folders(options)
    decisive = {name: value for name, value in vars(options).items() if name in (*_FIXED, *_CHANGEABLE)}
    decisive |= {"deepspeed": options.deepspeed is not None, "ranks": dist.get_world_size()}
    decisive |= {"channels": images.channels, "classes": images.classes}
    resume = options.resume or is_restart()
    begun = Begun(*run.together(
        lambda: folders.begin("image_classification", decisive, _FIXED, resume, options.overwrite and not resume)
    ))  # fmt: skip
    with run.console_on(options.log_file) as console:
        made, notes = made_trainer(trainer, model, images, metrics, device, options)
        recipe = made_recipe(image_trainer, made, images, options)
        chosen = {"strategy": made.strategy, "batch_size": options.batch_size}
        run.together(lambda: folders.add("chosen", chosen))
        console.line(
            "start",
            f"{options.model} with {parameters:,} parameters, {made.strategy} on {ranks_text(dist.get_world_size())}; "
            f"{len(images.training):,} images, {recipe.steps_per_epoch} steps an epoch of "
            f"{options.batch_size} for each rank; learning rate {recipe.peak_learning_rate:.3g}",
            options=decisive, parameters=parameters, steps_per_epoch=recipe.steps_per_epoch, **chosen,
        )  # fmt: skip
        for note in notes:
            console.line("auto", note)
        if options.warmup_epochs > options.epochs / 2:
            console.line(
                "auto", f"warm-up of {options.epochs / 2:g} epochs, half of all, not {options.warmup_epochs:g}"
            )
        begun.say(console)
        recipe.watch(run, options.bad_images, options.target_accuracy)
        try:
            with run.running():
                report: dict[str, Any] = recipe.fit(resume=begun.resumes)
        except TrainingEnds as end:
            console.line("end", str(end))
            if end.report is None:
                raise
            report = dict(end.report)
        finally:
            made.close()
    if dist.get_rank() == 0:
        print(json.dumps(report))
    return report


def made_trainer(
    trainer: Any,
    model: torch.nn.Module,
    images: ImageSets,
    metrics: Metrics,
    device: torch.device,
    options: argparse.Namespace,
) -> tuple[Any, list[str]]:
    """Return the trainer that the options name, and what was chosen automatically, as lines. Sets the batch size."""
    if options.deepspeed is not None:
        return _deepspeed_trainer(model, trainer.monitor_type, device, options, metrics), []
    notes: list[str] = []
    make_optimizer = optimizer_maker(options)
    sample_gb = activation_gb(model, (images.channels, images.size, images.size), options.activation_checkpointing)
    if options.auto_batch_size:
        fitting = fitting_batch_size(model, sample_gb, device, make_optimizer, options)
        options.batch_size = bounded_by_data(fitting, len(images.training), dist.get_world_size())
        notes.append(
            f"batch size {options.batch_size} for each rank: memory has room for {fitting}, the data for "
            f"{STEPS_PER_EPOCH} steps an epoch of {options.batch_size} or more"
            if options.batch_size < fitting
            else f"batch size {options.batch_size} for each rank: the largest power of two that fits, up to 1,024"
        )
    try:
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
            keep_checkpoints=options.keep,
            shard_ranks=options.shard_ranks,
            metrics=metrics,
        )
    except ValueError as error:
        raise RunRefused(str(error)) from None
    if made.reason:
        notes.append(made.reason)
    return made, notes


def made_recipe(image_trainer: Any, made: Any, images: ImageSets, options: argparse.Namespace) -> Any:
    """Return the learner's `ImageTrainer` for a trainer."""
    try:
        return image_trainer(
            made,
            images,
            options.batch_size,
            options.epochs,
            options.lr,
            warmup_epochs=min(options.warmup_epochs, options.epochs / 2),
            workers=options.workers,
            seed=options.seed,
        )
    except ValueError as error:
        raise RunRefused(str(error)) from None


def _deepspeed_trainer(
    model: torch.nn.Module, monitor_type: Any, device: torch.device, options: argparse.Namespace, metrics: Metrics
) -> Any:
    from labkit.course.phase4_production.image_classification.given.deepspeed_trainer import (
        DeepSpeedTrainer,
        deepspeed_config,
    )

    try:
        config = deepspeed_config(options.deepspeed, options.batch_size, options.lr)
    except (OSError, ValueError) as error:
        raise RunRefused(str(error)) from None
    monitor = metrics.monitor(monitor_type, dist.get_rank(), dist.get_world_size(), device=device)
    loss = partial(F.cross_entropy, label_smoothing=options.label_smoothing)
    return DeepSpeedTrainer(
        model, config, loss, monitor, device, options.checkpoint_dir, options.log_dir, options.checkpoint_minutes
    )


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
    try:
        ranks = shard_ranks_of(options.strategy, options.shard_ranks, dist.get_world_size())
    except ValueError as error:
        raise RunRefused(str(error)) from None
    sharded = parameters * (8 + state_bytes) / ranks / 1e9 + 3 * unit_gb(model)
    if options.cpu_offload:
        sharded = 3 * unit_gb(model)
    room = memory - (whole if options.strategy not in SHARDED else sharded)
    if options.strategy == "auto" and room < 8 * sample_gb:
        room = memory - sharded
    samples = room / sample_gb * options.gradient_accumulation if sample_gb else 1024
    if samples < 1:
        raise RunRefused(f"no batch fits: {memory:.3g} GB for {parameters:,} parameters and their states")
    return min(1024, 1 << (int(samples).bit_length() - 1))


def bounded_by_data(batch_size: int, images: int, ranks: int) -> int:
    """Return the batch size, or the largest power of two with which an epoch has `STEPS_PER_EPOCH` steps."""
    most = max(1, images // (ranks * STEPS_PER_EPOCH))
    return min(batch_size, 1 << (most.bit_length() - 1))


def config_of(config: Any) -> Any:
    """Return exercise 01's `DDPConfig` from the environment; without a launcher, that of a single rank."""
    if launchers.is_launched():
        return config.from_env()
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return config(backend=backend, init_method=f"file://{folder}/store", world_size=1, rank=0, local_rank=0)
