"""Uses of a language model's checkpoint: `generate` text, `evaluate` on held-out text, `export` to a file.

Model and layout come from `configuration.json` in the checkpoint folder. They need a multiple of the ranks that share
the model, tensor x pipeline; without a launcher there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from labkit.course.arguments import integer
from labkit.course.phase4_production.checkpointing.given.errors import CheckpointError
from labkit.course.phase4_production.llm_13b.given import command
from labkit.course.phase4_production.llm_13b.given.report import Report, whole_model
from labkit.course.phase4_production.monitoring.given.metrics import Metrics
from labkit.course.training_run.folders import stored_configuration
from labkit.course.training_run.options import ProgramParser, RunRefused, checked, refuse

PROGRAM = "llm_13b"
VERBS = ("generate", "evaluate", "export")


def parser(verb: str) -> argparse.ArgumentParser:
    """Return the parser of the options of `generate`, `evaluate` or `export`."""
    made = ProgramParser(
        prog=f"{PROGRAM} {verb}", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add, from_1 = made.add_argument, checked(int, integer(at_least=1))
    add("--checkpoint-dir", required=True, help="of a training by this program")
    if verb == "generate":
        add("--prompt", default="def ", help="beginning of the text")
        add("--tokens", type=from_1, default=200, help="to draw after it; a token is a byte")
        add("--seed", type=checked(int, integer(at_least=0)), default=0)
    elif verb == "evaluate":
        add("--held-out", type=from_1, default=256, metavar="WINDOWS", help="of held-out text")
    else:
        add("--to", required=True, metavar="FILE.pt", help="sizes and weights of the whole model, for torch.load")
    return made


def main(llm_13b: Any, words: Sequence[str]) -> dict[str, Any]:
    """Generate, evaluate or export, on all ranks; return the result, which the first rank prints.

    llm_13b: the module of exercise 26. words: the verb, and its options.
    """
    verb, made_parser = words[0], parser(words[0])
    asked = made_parser.parse_args(words[1:])
    if verb == "generate" and not asked.prompt:
        made_parser.error("--prompt must have a character or more")
    try:
        options = _options(asked)
    except RunRefused as error:
        made_parser.error(str(error))
    command.join()
    try:
        result = _result(llm_13b, verb, asked, options)
    except (RunRefused, CheckpointError) as error:  # on all ranks alike
        dist.destroy_process_group()
        refuse(f"{PROGRAM} {verb}: {error}")
    dist.destroy_process_group()
    return result


def _options(asked: argparse.Namespace) -> argparse.Namespace:
    """Return the options of the training. Raises `RunRefused`."""
    stored = stored_configuration(asked.checkpoint_dir)
    if stored is None or stored["program"] != PROGRAM:
        raise RunRefused(f"{asked.checkpoint_dir} has no configuration.json of {PROGRAM}")
    options = command.parser().parse_args([])
    for name, value in stored["options"].items():
        setattr(options, name, tuple(value) if name == "model" else value)
    return options


def _result(llm_13b: Any, verb: str, asked: argparse.Namespace, options: argparse.Namespace) -> dict[str, Any]:
    place = options.tensor_parallel * options.pipeline_parallel
    if dist.get_world_size() % place:
        raise RunRefused(
            f"the model is on {options.tensor_parallel} x {options.pipeline_parallel} ranks, and there are "
            f"{dist.get_world_size()}: start it by torchrun --nproc-per-node {place}"
        )
    # a batch that fits any number of data-parallel ranks: no step is taken
    options.microbatch_size = 1
    options.global_batch_size = dist.get_world_size() // place
    plan = command.plan_of(options, dist.get_world_size(), Metrics())
    trainer = llm_13b.build(plan)
    step = llm_13b.MeshCheckpointer(asked.checkpoint_dir, trainer).load()
    if not step:
        raise RunRefused(f"{asked.checkpoint_dir} has no checkpoint that all places have")
    if verb == "evaluate":
        report: Report = Report().finish(trainer, asked.held_out)
        return _shown({"step": step, "held_out_loss": report.held_out_loss, "windows": asked.held_out})
    model = whole_model(trainer)
    if dist.get_rank():
        return {}
    if verb == "export":
        layers, width, heads = options.model
        sizes = {"layers": layers, "width": width, "heads": heads, "context": options.sequence}
        weights = {name: value.cpu() for name, value in model.state_dict().items()}
        try:
            torch.save({**sizes, "step": step, "weights": weights}, f"{asked.to}.tmp")
            os.replace(f"{asked.to}.tmp", asked.to)
        except (OSError, RuntimeError) as error:  # torch raises a RuntimeError for a folder that is missing
            print(f"{PROGRAM} export: {asked.to}: {error}", file=sys.stderr)
            raise SystemExit(1) from None
        return _shown({"step": step, **sizes, "output": asked.to})
    prompt = torch.tensor(list(asked.prompt.encode()))
    generator = torch.Generator(prompt.device).manual_seed(asked.seed)
    tokens = llm_13b.generate(model, prompt, asked.tokens, options.sequence, generator)
    text = bytes(tokens.tolist()).decode(errors="replace")
    print(text)
    return {"step": step, "text": text}


def _shown(result: dict[str, Any]) -> dict[str, Any]:
    if dist.get_rank() == 0:
        print(json.dumps(result))
    return result
