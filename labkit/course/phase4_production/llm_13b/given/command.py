"""The command that trains a language model in three dimensions: `labkit launch --config cluster/configs/3d.yaml`."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from labkit.course.arguments import integer, positive
from labkit.course.phase4_production.checkpointing.given.errors import CheckpointError
from labkit.course.phase4_production.llm_13b.given.plans import TrainingPlan
from labkit.course.phase4_production.llm_13b.given.report import Report
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
from labkit.data.source_text import VOCAB
from labkit.predict import Plan, Transformer

PRECISIONS = ("no", "bf16")
_FIXED = ("model", "sequence", "tensor_parallel", "pipeline_parallel", "zero", "mixed_precision", "seed")
"""What a checkpoint cannot be loaded without, or what would make another training of it."""
_CHANGEABLE = (
    "steps", "global_batch_size", "microbatch_size", "activation_checkpointing", "lr", "warmup_steps",
)  # fmt: skip
"""Options that decide how the training goes, too: a resumed run names those that differ."""
_from_1, _from_0 = checked(int, integer(at_least=1)), checked(int, integer(at_least=0))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options for training."""
    made = ProgramParser(
        prog="llm_13b",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog="From a checkpoint: generate --help, evaluate --help, export --help.",
    )
    add = made.add_argument
    add("--model", type=model_sizes, default="2x64x4", metavar="LAYERSxWIDTHxHEADS", help="40x5120x40: 13 billion")
    add("--sequence", type=_from_1, default=32, help="tokens of a sample; a token is a byte of source text")
    add("--steps", type=_from_1, default=100)
    add("--tensor-parallel", type=_from_1, default=1, metavar="RANKS", help="ranks that share each matrix")
    add("--pipeline-parallel", type=_from_1, default=1, metavar="RANKS", help="stages; other ranks are data-parallel")
    add("--global-batch-size", type=_from_1, default=32, help="samples of a step, on all ranks")
    add("--microbatch-size", type=_from_1, default=4, help="samples of a forward pass")
    add("--zero", type=int, choices=(0, 1), default=1, help="1: data-parallel ranks share the optimizer's state")
    add("--activation-checkpointing", action="store_true", help="each block is computed again in the backward pass")
    add("--mixed-precision", choices=PRECISIONS, default="no")
    add("--lr", type=checked(float, positive), default=6e-4)
    add("--warmup-steps", type=_from_0, default=100, help="at most all steps")
    add_run_options(add)
    add_options(add)
    add("--checkpoint-steps", type=_from_0, default=0, help="between checkpoints; 0: only on SIGTERM")
    add("--held-out", type=_from_0, default=0, metavar="WINDOWS", help="of held-out text, to test the model at the end")
    add("--seed", type=_from_0, default=0)
    return made


def require_options(options: argparse.Namespace) -> None:
    """Raise `RunRefused` for options that do not go together. Looks at no file."""
    require_run_options(options)
    layers, width, heads = options.model
    if options.checkpoint_steps and options.checkpoint_dir is None:
        raise RunRefused("--checkpoint-steps needs --checkpoint-dir")
    if width % heads:
        raise RunRefused(f"--model {layers}x{width}x{heads}: a width of {width} does not divide into {heads} heads")
    if heads % options.tensor_parallel:
        raise RunRefused(f"--tensor-parallel {options.tensor_parallel} does not divide {heads} heads")


def require_files(options: argparse.Namespace) -> None:
    """Raise `RunRefused` if a folder has an earlier run, on this machine."""
    if not options.resume and not options.overwrite:
        _folders(options).require_unused()


def _folders(options: argparse.Namespace) -> Folders:
    return Folders(options.checkpoint_dir, Metrics.folders(options), options.log_file)


def model_sizes(text: str) -> tuple[int, int, int]:
    """Parse `LAYERSxWIDTHxHEADS`; a type for argparse."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"expected LAYERSxWIDTHxHEADS, such as 40x5120x40, got {text!r}")
    layers, width, heads = map(int, match.groups())
    return layers, width, heads


def main(llm_13b: Any, words: Sequence[str] | None = None) -> Report:
    """Train as the options say, and print the results on the first rank. Return this rank's report.

    llm_13b: the module of exercise 26. Exits with status 2 and one line for wrong arguments, with 143 after SIGTERM.
    """
    options = parser().parse_args(words)
    try:
        require_options(options)
        metrics = Metrics.of(options)
        join()
        plan = plan_of(options, dist.get_world_size(), metrics)
    except PortInUse as error:
        refuse_on_this_rank(f"llm_13b: {error}")
    except ValueError as error:
        parser().error(str(error))
    try:
        report = _train(llm_13b, plan, options)
    except RunRefused as error:  # as the next two, on all ranks alike
        dist.destroy_process_group()
        refuse(f"llm_13b: {error}")
    except CheckpointError as error:
        if dist.get_rank() == 0:
            print(f"llm_13b: {error}", file=sys.stderr)
        dist.destroy_process_group()
        raise SystemExit(1) from None
    except TrainingEnds as end:
        dist.destroy_process_group()
        raise SystemExit(end.status) from None
    dist.destroy_process_group()
    return report


def _train(llm_13b: Any, plan: TrainingPlan, options: argparse.Namespace) -> Report:
    """Train on the ranks of the group. Raises `RunRefused`, `CheckpointError` and `TrainingEnds`."""
    run, folders = TrainingRun(options.keep, saves=options.checkpoint_dir is not None), _folders(options)
    run.plan = plan
    decisive = {name: value for name, value in vars(options).items() if name in (*_FIXED, *_CHANGEABLE)}
    decisive["ranks"] = dist.get_world_size()
    resume = options.resume or is_restart()
    begun = Begun(*run.together(
        lambda: folders.begin("llm_13b", decisive, _FIXED, resume, options.overwrite and not resume)
    ))  # fmt: skip
    with run.console_on(options.log_file) as console:
        layout = plan.layout
        console.line(
            "start",
            f"{plan.model.name}, {plan.model.parameters:,.0f} parameters; data {layout.data} x pipeline "
            f"{layout.pipeline} x tensor {layout.tensor} on {ranks_text(dist.get_world_size())}; {plan.steps} steps of "
            f"{layout.batch * plan.model.sequence:,} tokens",
            options=decisive,
        )  # fmt: skip
        begun.say(console)
        if resume and not begun.resumes:
            console.line("begin", "begins at step 0: there is no checkpoint yet", step=0)
        run.resumes = begun.resumes
        try:
            with run.running():
                report: Report = llm_13b.train(plan)
        except TrainingEnds as end:
            console.line("end", str(end))
            raise
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
    return report


def plan_of(options: argparse.Namespace, world_size: int, metrics: Metrics) -> TrainingPlan:
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
        metrics=metrics,
        seed=options.seed,
    )


def join() -> None:
    """Join the group, that of a single rank without a launcher.

    Tensors are made on this rank's GPU, if all ranks of the node have one.
    """
    backend = "gloo"
    if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        torch.set_default_device(device)
        backend = "nccl"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        folder = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
