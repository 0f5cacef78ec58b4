"""Questions of zero. Answers follow from counting bytes, the prediction's from the formula that the picture shows."""

from __future__ import annotations

from labkit.questions import Number

QUESTIONS = [
    Number(
        name="stage2_gb",
        text="**Predict**: 13 billion parameters on 8 GPUs, in float32 with Adam. Stage 2 keeps parameters whole, and "
        "cuts gradients and the two moments into shards. How many GB does each GPU hold?",
        answer=lambda: 13 * (4 + 12 / 8),
        solution="13 * (4 + 12 / 8)",
        unit="GB",
        tolerance=0.01,
        near={
            "13 * (8 + 8 / 8)": "that is stage 1: in stage 2 gradients are shards, too.",
            "13 * 16 / 8": "that is stage 3: in stage 2 parameters are whole.",
            "208": "that is one GPU without ZeRO.",
        },
        otherwise="For each parameter: 4 bytes of it, 4 of its gradient, 8 of its moments. Which are divided by 8?",
        why="4 bytes whole and 12 in shards: 13 * (4 + 12 / 8) = {answer} GB. In mixed precision stage 1 takes as "
        "much: 4 bytes whole and 12 in shards there, too.",
    ),
    Number(
        name="largest_billions",
        text="**Predict**: 64 GPUs with 80 GB each, stage 3, 16 bytes for each parameter, and nothing else in memory. "
        "How many billion parameters fit?",
        answer=lambda formula: formula[3][-1],
        solution="64 * 80 / 16",
        unit="billion parameters",
        tolerance=0.01,
        near={
            "80 / 16": "that is one GPU.",
            "64 * 80": "each parameter has 16 bytes.",
            "20": "that is stage 2, however many GPUs there are.",
        },
        otherwise="All GPUs together have 64 * 80 GB.",
        why="64 * 80 GB for 16 bytes each: {answer:.0f} billion. Whole layers take some of it, as your code shows.",
        shown_by="the picture below",
    ),
    Number(
        name="stage2_limit",
        text="**a** In stage 2, parameters stay whole. How many billion of them, 4 bytes each, can there be at most on "
        "GPUs with 80 GB, however many GPUs there are?",
        answer=lambda: 80 / 4,
        solution="80 / 4",
        unit="billion parameters",
        tolerance=0.01,
        near={
            "80 / 16": "gradients and moments become as small as you like.",
            "80 / 8": "in stage 2 gradients are shards, too.",
        },
        otherwise="Which bytes of a parameter are left when shards are tiny?",
        why="Only the 4 bytes of the parameter itself are left: 80 / 4 = {answer:.0f} billion. In mixed precision 2 "
        "bytes are left, for 40 billion.",
    ),
    Number(
        name="traffic_ratio",
        text="**b** How many times as many bytes as with plain data parallelism does a rank send in a step of stage 3?",
        answer=lambda: 3 / 2,
        solution="3 / 2",
        tolerance=0.01,
        near={
            "2": "the all-reduce of data parallelism counts twice, too.",
            "3": "data parallelism sends two models: an all-reduce is a reduce-scatter and an all-gather.",
            "1": "parameters are gathered twice, forward and backward.",
        },
        otherwise="Count whole models: gathers before forward and backward, a reduce-scatter; against an all-reduce.",
        why="Two gathers and a reduce-scatter, against two of them in an all-reduce: {answer} times.",
    ),
    Number(
        name="gather_tokens",
        text="**c** A layer computes 2 FLOPs forward for each of its parameters and each token of a rank, at 400 "
        "TFLOP/s. Meanwhile the next layer arrives in bfloat16, at 50 GB/s. How many tokens must a rank have to hide "
        "that?",
        answer=lambda: 400e12 / 50e9,
        solution="2 / 50e9 * 400e12 / 2",
        unit="tokens",
        tolerance=0.03,
        near={
            "2 * 400e12 / 50e9": "both times have a 2: two bytes and two FLOPs.",
            "400e12 / 50e9 / 2": "both times have a 2: two bytes and two FLOPs.",
        },
        otherwise="With P parameters: 2·P·T / 400e12 and 2·P / 50e9 seconds. P does not matter.",
        why="2·P·T / 400e12 = 2·P / 50e9, so T = {answer:,.0f} tokens on each rank, whatever the layers are.",
    ),
]
