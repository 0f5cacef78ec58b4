"""Questions of gradient_accumulation. Steps, bytes and times are those of the notebook's runs."""

from __future__ import annotations

import math
from typing import Any

from labkit.questions import Number


def bytes_of_an_all_reduce(digit_runs: dict[str, Any]) -> float:
    """Return the bytes that rank 0 gave to an all-reduce of part 5, on two ranks."""
    events = digit_runs["4 × 16 on 2 ranks"].trace.collectives(0)
    return float(next(event.nbytes for event in events if event.operation == "all_reduce"))


def share_of_16(measured: dict[int, Any]) -> float:
    """Return the share of communication of 16 machines, in percent, in a window of 16 microbatches."""
    whole, talking = measured[16][16]
    return float(100 * talking / whole)


QUESTIONS = [
    Number(
        name="window_share",
        text="**Predict**: on 16 machines a window of one microbatch is communication for nine tenths of its time. "
        "What percentage is left of that with 16 microbatches in a window?",
        answer=share_of_16,
        solution="100 * 9 / (9 + 16)",
        unit="%",
        tolerance=0.15,
        near={
            "90 / 16": "communication is a sixteenth of what it was for each microbatch. The whole became shorter, "
            "too.",
            "90": "the all-reduce comes once for each window, whose computing takes 16 times as long.",
        },
        otherwise="One microbatch computes for a ninth of the time of the all-reduce. And 16 of them?",
        why="Computing takes 16 times as long, the all-reduce is the same: 9 to 16 where it was 9 to 1. In the run it "
        "was {answer:.0f} %.",
        shown_by="the picture below",
    ),
    Number(
        name="epoch_updates",
        text="**a** 1,437 pictures, microbatches of 16, four of them in a window, on two ranks, and a `flush` at the "
        "end: how many optimizer steps does an epoch have?",
        answer=lambda learnt: learnt["4 × 16 on 2 ranks"]["updates"] / 12,
        solution="ceil(1437 / (16 * 4 * 2))",
        near={
            "11": "what is left after the last full window is not lost: `flush` makes a step of it.",
            "1437 / 128": "a step is taken or not: round to the side that `flush` decides.",
            "23": "two ranks fill a window together.",
            "90": "that is the number of microbatches of all ranks together.",
            "45": "that is the number of microbatches of each rank. A window has four.",
        },
        otherwise="How many samples does a full window have, on both ranks?",
        why="A full window has 128 samples: eleven of them, and one with the 29 that are left. Part 5 took {answer:g} "
        "steps in each epoch.",
    ),
    Number(
        name="window_bytes",
        text="**b** How many bytes does each rank of part 5 give to an all-reduce? The model is that of the digits, "
        "64 to 256 to 10 with biases, in float32; the message has a number `present` for each parameter, and the "
        "number of samples.",
        answer=bytes_of_an_all_reduce,
        solution="4 * (64 * 256 + 256 + 256 * 10 + 10 + 4 + 1)",
        unit="bytes",
        near={
            "64 * 256 + 256 + 256 * 10 + 10 + 4 + 1": "so many numbers. How many bytes has each?",
            "4 * (64 * 256 + 256 + 256 * 10 + 10)": "those are the gradients alone. What travels with them?",
            "4 * (64 * 256 + 256 + 256 * 10 + 10 + 4)": "the number of samples is missing.",
            "4 * (64 * 256 + 256 + 256 * 10 + 10 + 1)": "the numbers `present` are missing, one for each parameter.",
            "4 * 4 * (64 * 256 + 256 + 256 * 10 + 10 + 4 + 1)": "that would be a message for each microbatch.",
        },
        otherwise="How many numbers are there: weights, biases, `present`, samples?",
        why="19,210 gradients and 5 numbers more, 4 bytes each, however many samples they come from. In part 5 rank 0 "
        "gave {answer:,.0f} bytes.",
    ),
    Number(
        name="enough_microbatches",
        text="**c** On 16 machines of part 6, how many microbatches must a window have for communication to be at most "
        "10 % of it? A window of k of them takes the all-reduce, `talking`, and k times a microbatch's `computing`, "
        "printed above; you may use both names.",
        answer=lambda talking, computing: math.ceil(9 * talking / computing),
        solution="ceil(9 * talking / computing)",
        near={
            "answer - 1": "with that many it is just above 10 %.",
            "answer + 1": "one less is enough.",
        },
        otherwise="Let communication be one part: how many parts is computing then?",
        why="Nine parts computing to one part talking, rounded up to whole microbatches: `talking / (talking + k * "
        "computing)` is below a tenth from k = {answer:.0f} on.",
    ),
]
