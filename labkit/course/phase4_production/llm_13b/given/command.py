"""The command that trains a language model in three dimensions: `labkit launch --config cluster/configs/3d.yaml`."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from labkit.course.phase4_production.llm_13b.given.plans import TrainingPlan
from labkit.course.phase4_production.llm_13b.given.report import Report
from labkit.data.source_text import VOCAB
from labkit.predict import Plan, Transformer

PRECISIONS = ("no", "bf16")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    made = argparse.ArgumentParser(
        prog="llm_13b", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = made.add_argument
    add("--model", type=model_sizes, default="2x64x4", metavar="LAYERSxWIDTHxHEADS", help="40x5120x40: 13 billion")
    add("--sequence", type=int, default=32, help="tokens of a sample; a token is a byte of source text")
    add("--steps", type=int, default=100)
    add("--tensor-parallel", type=int, default=1, metavar="RANKS", help="ranks that share each matrix")
    add("--pipeline-parallel", type=int, default=1, metavar="RANKS", help="stages; other ranks are data-parallel")
    add("--global-batch-size", type=int, default=32, help="samples of a step, on all ranks")
    add("--microbatch-size", type=int, default=4, help="samples of a forward pass")
    add("--zero", type=int, choices=(0, 1), default=1, help="1: data-parallel ranks share the optimizer's state")
    add("--activation-checkpointing", action="store_true", help="each block is computed again in the backward pass")
    add("--mixed-precision", choices=PRECISIONS, default="no")
    add("--lr", type=float, default=6e-4)
    add("--warmup-steps", type=int, default=100)
    add("--checkpoint-dir", default=None, help="training goes on from the latest checkpoint in it")
    add("--checkpoint-steps", type=int, default=0, help="between checkpoints; 0: none")
    add("--held-out", type=int, default=0, metavar="WINDOWS", help="of held-out text, to test the model at the end")
    add("--seed", type=int, default=0)
    return made


def model_sizes(text: str) -> tuple[int, int, int]:
    """Parse `LAYERSxWIDTHxHEADS`; a type for argparse."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"expected LAYERSxWIDTHxHEADS, such as 40x5120x40, got {text!r}")
    layers, width, heads = map(int, match.groups())
    return layers, width, heads


def main(llm_13b: Any, words: Sequence[str] | None = None) -> Report:
    """Train as the options say, and print the results on the first rank. Return this rank's report.

    llm_13b: the module of exercise 26.
    """
    options = parser().parse_args(words)
    if options.checkpoint_steps and options.checkpoint_dir is None:
        parser().error("--checkpoint-steps needs --checkpoint-dir")
    _join()
    try:
        plan = plan_of(options, dist.get_world_size())
    except ValueError as error:
        parser().error(str(error))
    report: Report = llm_13b.train(plan)
    last = max(report.losses, default=-1)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, (last, report.losses.get(last), report.peak_bytes))
    step, loss, _ = max(gathered, key=lambda entry: entry[0])
    if dist.get_rank() == 0:
        seconds = sorted(report.step_seconds)
        result = {
            "first_step": report.first_step,
            "steps": plan.steps,
            "loss": None if step < 0 else loss,
            "held_out_loss": report.held_out_loss,
            "step_seconds": seconds[len(seconds) // 2] if seconds else None,
            "peak_gb": max(peak for *_, peak in gathered) / 1e9,
        }
        print(json.dumps(result))
    dist.destroy_process_group()
    return report


def plan_of(options: argparse.Namespace, world_size: int) -> TrainingPlan:
    """Return the plan for that many ranks. Raises `ValueError`, which names the options that do not fit."""
    layers, width, heads = options.model
    tensor, pipeline = options.tensor_parallel, options.pipeline_parallel
    data, rest = divmod(world_size, tensor * pipeline)
    if rest:
        raise ValueError(
            f"--tensor-parallel {tensor} and --pipeline-parallel {pipeline} need a multiple of {tensor * pipeline} "
            f"ranks, but there are {world_size}"
        )
    if options.global_batch_size % (each := data * options.microbatch_size):
        raise ValueError(
            f"--global-batch-size {options.global_batch_size} is no multiple of {each}: --microbatch-size "
            f"{options.microbatch_size} on {data} data-parallel ranks"
        )
    name = f"gpt of {layers} layers"
    return TrainingPlan(
        Transformer(name, layers, width, heads, VOCAB, options.sequence, tied=True),
        Plan(
            batch=options.global_batch_size,
            microbatch=options.microbatch_size,
            data=data,
            tensor=tensor,
            pipeline=pipeline,
            zero=options.zero,
            recompute="full" if options.activation_checkpointing else "none",
            precision="bf16" if options.mixed_precision == "bf16" else "fp32",
        ),
        options.steps,
        learning_rate=options.lr,
        warmup_steps=min(options.warmup_steps, options.steps),
        checkpoint_dir=options.checkpoint_dir,
        checkpoint_every=options.checkpoint_steps,
        held_out=options.held_out,
        seed=options.seed,
    )


def _join() -> None:
    """Join the group; tensors are made on this rank's GPU, if all ranks of the node have one."""
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        torch.set_default_device(device)
        dist.init_process_group("nccl")
    else:
        dist.init_process_group("gloo")
