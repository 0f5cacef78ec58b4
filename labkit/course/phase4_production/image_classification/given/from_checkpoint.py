"""Uses of an image classifier's checkpoint: `evaluate` on test images, and `export` to a file.

The options of the training come from `configuration.json` in its checkpoint folder.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkit.course.arguments import integer
from labkit.course.phase4_production.checkpointing.given.errors import CheckpointError
from labkit.course.phase4_production.image_classification.given import command
from labkit.course.phase4_production.monitoring.given.metrics import Metrics
from labkit.course.training_run.folders import stored_configuration
from labkit.course.training_run.options import ProgramParser, RunRefused, checked, refuse
from labkit.models import image_model

PROGRAM = "image_classification"
VERBS = ("evaluate", "export")
EXPORTS = (".pt", ".pt2")


def parser(verb: str) -> argparse.ArgumentParser:
    """Return the parser of the options of `evaluate` or `export`."""
    made = ProgramParser(prog=f"{PROGRAM} {verb}", description=__doc__)
    add = made.add_argument
    add("--checkpoint-dir", required=True, help="of a training by this program")
    add("--best", action="store_true", help="the checkpoint with the best top-1, not the latest one")
    add("--data", default=None, help="a folder with train/CLASS/ and val/CLASS/; by default that of the training")
    add("--batch-size", type=checked(int, integer(at_least=1)), default=None, help="of each rank")
    add("--workers", type=checked(int, integer(at_least=0)), default=0, help="processes that decode images")
    if verb == "export":
        add("--to", required=True, metavar="FILE", help="model.pt: weights for torch.load; model.pt2: torch.export")
    return made


def main(process_group: Any, trainer: Any, image_trainer: Any, words: Sequence[str]) -> dict[str, Any]:
    """Evaluate or export, on all ranks; return the result, which the first rank prints. words: the verb, and options.

    The weights are their average, if the training tested that.
    """
    verb, made_parser = words[0], parser(words[0])
    asked = made_parser.parse_args(words[1:])
    try:
        options = _options(asked, verb)
        images = command.images_of(options)
    except RunRefused as error:
        made_parser.error(str(error))
    before = dist.is_initialized()
    device = process_group.setup_distributed(command.config_of(process_group.DDPConfig))
    model = image_model(options.model, images.channels, images.size, images.classes)
    try:
        made, _ = command.made_trainer(trainer, model, images, Metrics(), device, options)
        recipe = command.made_recipe(image_trainer, made, images, options)
        step = made.load_checkpoint(best=asked.best)
        if not step:
            raise RunRefused(f"{asked.checkpoint_dir} has no checkpoint{' with a metric' if asked.best else ''}")
        result = _evaluated(recipe, step) if verb == "evaluate" else _exported(recipe, step, options, asked.to)
    except (RunRefused, CheckpointError) as error:  # on all ranks alike
        refuse(f"{PROGRAM} {verb}: {error}")
    finally:
        if not before:
            process_group.cleanup()
    return result


def _options(asked: argparse.Namespace, verb: str) -> argparse.Namespace:
    """Return the options of the training, with what was asked for instead."""
    stored = stored_configuration(asked.checkpoint_dir)
    if stored is None or stored["program"] != PROGRAM:
        raise RunRefused(f"{asked.checkpoint_dir} has no configuration.json of {PROGRAM}")
    if stored["options"]["deepspeed"]:
        raise RunRefused(f"{asked.checkpoint_dir} is DeepSpeed's: its zero_to_fp32.py there makes a file of weights")
    if verb == "export" and Path(asked.to).suffix not in EXPORTS:
        raise RunRefused(f"--to must end in {' or '.join(EXPORTS)}, got {asked.to}")
    options = command.parser().parse_args([])
    for name, value in {**stored["options"], **stored.get("chosen", {})}.items():
        setattr(options, name, value)
    options.checkpoint_dir, options.deepspeed, options.auto_batch_size = asked.checkpoint_dir, None, False
    if options.strategy == "hybrid":  # any number of ranks evaluates
        options.strategy, options.shard_ranks = "fsdp", None
    options.cpu_offload = options.cpu_offload and options.strategy == "fsdp"
    options.workers, options.data = asked.workers, asked.data or options.data
    options.batch_size = asked.batch_size or options.batch_size
    return options


def _evaluated(recipe: Any, step: int) -> dict[str, Any]:
    with recipe.testing():
        sums = recipe.count_hits()
    dist.all_reduce(sums)
    loss, top1, top5 = (sums[:3] / sums[3]).tolist()
    result = {"step": step, "loss": loss, "top1": top1, "top5": top5, "images": int(sums[3])}
    if dist.get_rank() == 0:
        print(json.dumps(result))
    return result


def _exported(recipe: Any, step: int, options: argparse.Namespace, output: str) -> dict[str, Any]:
    """Write the weights that evaluation has: as a dictionary, or as a program that needs torch alone."""
    images = recipe.images
    with recipe.testing():
        weights = {name: value.detach().cpu().clone() for name, value in recipe.trainer.model.state_dict().items()}
    shape = {"channels": images.channels, "size": images.size, "classes": images.classes}
    if dist.get_rank() == 0:
        temporary = f"{output}.tmp"
        try:
            if output.endswith(".pt2"):
                model = image_model(options.model, **shape).eval()
                model.load_state_dict(weights)
                example = torch.zeros(2, images.channels, images.size, images.size)
                batch = torch.export.Dim("batch")
                torch.export.save(torch.export.export(model, (example,), dynamic_shapes=({0: batch},)), temporary)
            else:
                torch.save({"model": options.model, **shape, "step": step, "weights": weights}, temporary)
            os.replace(temporary, output)
        except OSError as error:
            print(f"{PROGRAM} export: {output}: {error.strerror or error}", file=sys.stderr)
            raise SystemExit(1) from None
        print(json.dumps({"step": step, "model": options.model, **shape, "output": output}))
    return {"step": step, "output": output}
