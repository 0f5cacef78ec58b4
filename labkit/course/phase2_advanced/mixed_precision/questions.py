"""Questions of mixed_precision. Scales, bytes and times are those of the learner's module."""

from __future__ import annotations

from typing import Any

import torch

from labkit.questions import Number


def steps_to_2_20() -> float:
    """Count the steps without overflow that take the learner's scaler from 2**16 to 2**20."""
    from labkit.exercises import mixed_precision

    scaler, taken = mixed_precision.DynamicLossScaler(2.0**16), 0
    while scaler.get_scale() < 2**20 and taken < 100_000:
        scaler.update(found_inf=False)
        taken += 1
    return taken


def largest_message(runs: dict[str, Any]) -> float:
    """Return the bytes of the largest message that rank 0 gave in part 5."""
    return float(max(event.nbytes for event in runs["float16, scaled"].trace.collectives(0)))


def largest_scale() -> float:
    """Return the largest power of two that float16 multiplies 0.3 by without an overflow."""
    gradient = torch.tensor(0.3, dtype=torch.float64)
    return max(2.0**power for power in range(64) if (gradient * 2.0**power).half().isfinite())


QUESTIONS = [
    Number(
        name="scale_found",
        text="**Predict**: how low does the scale get before it grows for the first time? Type the scale "
        "itself, such as 2**40. The histogram of part 2 shows where gradients begin to overflow.",
        answer=lambda history: min(history[0]["scales"]),
        solution="2**36",
        tolerance=0.55,
        near={
            "36": "that is the power. Type the scale itself, such as 2**40.",
            "2**42": "there it begins, and overflows at once.",
            "2**16": "so low it never has to go: every power that is given away costs small gradients.",
        },
        otherwise="From which power on did gradients become infinite in the histogram of part 2?",
        why="The lowest scale of the run was {answer:.2g}, 2³⁶. From there on the largest gradient decides "
        "how high it gets.",
        shown_by="the picture below",
    ),
    Number(
        name="float32_step",
        text="**Predict**: the gradients of these 2.1 million parameters have 8.4 MB in float32. A rank sends nearly "
        "twice that, at 1.25 GB/s. How long is a step on eight machines?",
        answer=lambda milliseconds: milliseconds(torch.float32, 8),
        solution="2 * 7 / 8 * 8.4 / 1.25",
        unit="ms",
        tolerance=0.3,
        near={
            "8.4 / 1.25": "a rank sends every number nearly twice: once to be added up, once to be given to all.",
            "2 * 7 / 8 * 8.4 / 10": "10 Gb/s are bits.",
        },
        otherwise="How many bytes does a rank send, and how long does that take?",
        why="2 × 7/8 × 8.4 MB leave each machine, which takes 12 ms at 1.25 GB/s; latencies, computing and Adam come "
        "to it. In the run a step took {answer:.1f} ms. In bfloat16 half the bytes travel.",
        shown_by="the picture below",
    ),
    Number(
        name="steps_to_grow",
        text="**a** A scale of 2¹⁶ grows by a factor of 2 after each 2,000 steps without overflow. After how many "
        "steps is it 2²⁰, if there is none?",
        answer=steps_to_2_20,
        solution="4 * 2000",
        unit="steps",
        near={
            "16 * 2000": "2²⁰ is 16 times 2¹⁶. How often does a scale double to become 16 times as large?",
            "2000": "that is one doubling.",
            "5 * 2000": "from 16 to 20: how many doublings are there between them?",
        },
        otherwise="How often must it double?",
        why="It doubles four times. Your `DynamicLossScaler` took {answer:,.0f} steps just now.",
    ),
    Number(
        name="float16_bytes",
        text="**b** How many bytes does each rank give to the all-reduce of the gradients in part 5, in float16? The "
        "model has two linear layers with biases, 64 to 64 and 64 to 10; behind the gradients there is one number for "
        "each of the four parameters.",
        answer=largest_message,
        solution="2 * (64 * 64 + 64 + 64 * 10 + 10 + 4)",
        unit="bytes",
        near={
            "64 * 64 + 64 + 64 * 10 + 10 + 4": "so many numbers. How many bytes has each in float16?",
            "4 * (64 * 64 + 64 + 64 * 10 + 10 + 4)": "that is in float32.",
            "2 * (64 * 64 + 64 + 64 * 10 + 10)": "the four numbers behind the gradients are missing.",
            "2 * (64 * 64 + 64 * 10 + 4)": "layers have biases, too.",
        },
        otherwise="How many numbers are there, and how many bytes has each?",
        why="4,810 gradients and 4 numbers, 2 bytes each. In part 5 rank 0 gave {answer:,.0f} bytes to it.",
    ),
    Number(
        name="adam_gigabytes",
        text="**c** A model of 7 billion parameters is trained with Adam in bfloat16 with masters. How many GB do "
        "weights, gradients, masters and moments take, on each rank?",
        answer=lambda: 7 * (2 + 2 + 4 + 4 + 4),
        solution="7 * (2 + 2 + 4 + 4 + 4)",
        unit="GB",
        near={
            "7 * (2 + 2 + 4 + 4)": "Adam keeps two moments for each parameter.",
            "7 * (2 + 2 + 4)": "Adam keeps two moments for each parameter, 4 bytes each.",
            "7 * (2 + 4 + 4 + 4)": "gradients are there as well, in bfloat16.",
            "7 * (2 + 2 + 4 + 4 + 4) / 8": "those figures are bytes already.",
            "16": "that is for each parameter, in bytes.",
        },
        otherwise="What is there for each parameter, and with how many bytes?",
        why="16 bytes for each parameter: more than a GPU of 80 GB has, before the first activation. Exercise 15 "
        "divides 12 of them over the ranks.",
    ),
    Number(
        name="largest_scale",
        text="**d** The gradients of a model are between 10⁻⁹ and 0.3 in size. Which is the largest scale, a power of "
        "two, with which none of them overflows in float16? Type the scale itself, such as 2**10.",
        answer=largest_scale,
        solution="2**17",
        near={
            "17": "that is the power. Type the scale itself, such as 2**10.",
            "65504 / 0.3": "which power of two is not above that?",
            "2**18": "0.3 times that is 78,643.",
            "2**16": "twice as much is not too large yet.",
            "2**7": "that lifts the smallest one just far enough. How far may the largest go?",
        },
        otherwise="What is the largest number of float16, and what may the scale make of 0.3?",
        why="0.3 × 2¹⁷ is 39,322, twice that is more than 65,504. The smallest becomes 1.3·10⁻⁴, so it has all its "
        "bits: {answer:,.0f} serves both. Torch was asked just now.",
    ),
]
