"""Questions of tensor_parallel. Sums and parameters are counted on virtual ranks, which run the learner's module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.clusters import Job
from labkit.clusters.virtual import virtual
from labkit.questions import Choice, Number


def bytes_of_40_blocks(block_on: Callable[..., Any]) -> float:
    """Return the bytes that rank 0 gives to the all-reduces of 40 blocks, by a run of one."""
    trace = block_on(5120, 40, nproc_per_node=2).trace
    return float(40 * sum(event.nbytes for event in trace.collectives(0) if event.operation == "all_reduce"))


def count_parameters(tensor_parallel: Any) -> int:
    """Count a rank's parameters of a block of width 1024."""
    import torch.distributed as dist

    dist.init_process_group()
    return sum(p.numel() for p in tensor_parallel.TensorParallelTransformer(1024, 8).parameters())


def parameters_of_a_rank() -> float:
    """Return the number of parameters that each of four ranks holds."""
    from labkit.exercises import tensor_parallel

    run = virtual(nproc_per_node=4).run(Job.calling(count_parameters, tensor_parallel)).raise_if_failed()
    return float(run.values[0])


def percent_of_sums(x_bytes: int, port: float, formula: Callable[..., float]) -> float:
    """Return the share of the sums of part 6's block on 8 GPUs of a machine, by the formula, in percent."""
    return 100 * (4 * 2 * 7 / 8 * x_bytes / (port * 1e9)) / formula(8, 1, 4)


QUESTIONS = [
    Choice(
        name="copy_backward",
        text="**Before you go on**: each rank multiplies its copy of *x* by columns of its own. What does "
        "`copy_to_group` do on the way back?",
        options={
            "nothing": "each rank has the gradient through its own columns only: a part of the whole.",
            "sum over the ranks": "",
            "keep this rank's part": "all of *x* was used on every rank, so its gradient has the size of *x* on every "
            "rank.",
            "put the ranks' parts together": "the gradients that the ranks have are not parts side by side: each has "
            "the size of *x*.",
        },
        why="Every rank does something of its own with *x*, so each has a part of the gradient, of the size of *x*, "
        "and the whole is their sum: as in the cell with `own` above.",
    ),
    Number(
        name="speedup_of_64",
        text="**Predict**: on 8 GPUs of one machine the block is 6.6 times as fast as on one. How many times as fast "
        "is it on 64 GPUs, eight machines?",
        answer=lambda alone, packed: alone / packed[64],
        solution="9.2",
        tolerance=0.25,
        near={
            "64": "computing is divided by 64, the sums are not: they have to cross machines now.",
            "6.6 * 8": "computing is divided by 64, the sums are not: they have to cross machines now.",
            "6.6": "computing is divided by eight times as many GPUs; a little faster it is.",
        },
        otherwise="Four sums of 67 MB cross the machines' cards: 4 × 12.5 GB/s. How long does that take, beside 162 "
        "ms on one GPU?",
        why="In the run it was {answer:.1f} times. Computing is down to 2.5 ms; the sums take 15 ms, and more GPUs do "
        "not shorten them.",
        shown_by="the picture below",
    ),
    Number(
        name="sum_bytes",
        text="**a** A model of 40 blocks, width 5,120, batches of 2,048 tokens in bfloat16. How many bytes does a "
        "rank give to all-reduces in one step, forward and backward, embedding and loss left out?",
        answer=bytes_of_40_blocks,
        solution="40 * 4 * 2048 * 5120 * 2",
        unit="bytes",
        near={
            "40 * 4 * 2048 * 5120": "that is half: a block has two sums forward and two backward, and a number in "
            "bfloat16 has two bytes.",
            "40 * 4 * 2048 * 5120 * 4": "that is in float32.",
            "4 * 2048 * 5120 * 2": "that is one block.",
            "40 * 2048 * 5120 * 2": "how many sums does a block have?",
        },
        otherwise="How many sums does a block have, and how large is *x*?",
        why="40 blocks with four sums of the size of *x* each, 2,048 × 5,120 × 2 bytes. A run of one of your blocks "
        "on two virtual GPUs, times 40, gives {answer:,.0f}. The number of ranks does not occur in it.",
    ),
    Number(
        name="rank_parameters",
        text="**b** How many parameters does each rank hold of a block of width 1,024 on 4 ranks?",
        answer=parameters_of_a_rank,
        solution="6 * 1024 + (12 * 1024**2 + 7 * 1024) // 4",
        near={
            "(12 * 1024**2 + 13 * 1024) / 4": "norms, and biases behind a sum, are whole on every rank.",
            "12 * 1024**2 / 4": "biases and norms are missing.",
            "12 * 1024**2 + 13 * 1024": "that is the whole block.",
            "(12 * 1024**2 + 7 * 1024) / 4": "that is what is cut. What is on every rank besides?",
        },
        otherwise="What is on every rank besides the cut matrices?",
        why="A quarter of what is cut, 12·h² + 7·h, and all of the rest, 6·h: norms and biases behind a sum. On four "
        "virtual ranks your block had {answer:,.0f}.",
    ),
    Number(
        name="sum_percent",
        text="**c** Part 6's block, on 8 GPUs of one machine: what percentage of its time are the sums, by the "
        "formula? `x_bytes`, `port` (in GB/s) and `alone` (in seconds) are those of part 6; you may use the names.",
        answer=percent_of_sums,
        solution="100 * (4 * 2 * 7 / 8 * x_bytes / (port * 1e9)) / (alone / 8 + 4 * 2 * 7 / 8 * x_bytes / (port * "
        "1e9))",
        unit="%",
        tolerance=0.06,
        near={
            "answer / 4": "there are four sums.",
            "answer / 2": "in an all-reduce each rank sends nearly twice the tensor, and a block has four.",
            "100 - answer": "that is computing.",
        },
        otherwise="How long do four sums of 67 MB take at 300 GB/s, and how long does the block take in all?",
        why="Four sums of 2 × 7/8 of 67 MB take 1.6 ms at 300 GB/s, and an eighth of the computing takes 20 ms: "
        "{answer:.1f} %. With every doubling of the ranks computing is halved, and this share grows.",
    ),
]
