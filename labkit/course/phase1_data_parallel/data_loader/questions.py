"""Questions of data_loader. The answers come from the learner's sampler."""

from __future__ import annotations

import math
from typing import Any

from labkit.questions import Number


def sampler(size: int, ranks: int, rank: int = 0, **options: Any) -> Any:
    """Return a sampler of the learner's module."""
    from labkit.exercises import data_loader

    return data_loader.ShardedSampler(size, ranks, rank, **options)


def ranks_with_one_more() -> float:
    """Count the ranks with the most samples of a million on 48."""
    lengths = [len(sampler(1_000_000, 48, rank)) for rank in range(48)]
    return lengths.count(max(lengths))


def position() -> int:
    """Return the position after 500 batches of 32 on 64 ranks."""
    state: dict[str, int] = sampler(1_281_167, 64).state_dict(taken=500 * 32)
    return state["position"]


def steps_left() -> float:
    """Return the number of whole steps that are left for 48 ranks."""
    resumed = sampler(1_281_167, 48, drop_last=True)
    resumed.load_state_dict({**resumed.state_dict(), "position": position()})
    return len(resumed) // 32


QUESTIONS = [
    Number(
        name="step_with_thread",
        text="**Predict**: reading a batch takes 60 ms, computing 30 ms. How long is a step with a thread that reads "
        "ahead?",
        answer=lambda measured: measured[True][-1],
        solution="max(60, 30)",
        unit="ms",
        tolerance=0.2,
        near={
            "90": "that is one after the other, without a thread.",
            "30": "the thread cannot read a batch faster than the disk does.",
        },
        otherwise="The thread reads while the step computes: which of the two is waited for?",
        why="Both run at the same time, so the longer one decides: the disk. Measured here: {answer:.0f} ms.",
        shown_by="the picture below",
    ),
    Number(
        name="longer_shares",
        text="**a** 1,000,000 samples are dealt out to 48 ranks, `drop_last=False`. How many ranks have one sample "
        "more than the others?",
        answer=ranks_with_one_more,
        solution="1_000_000 % 48",
        near={
            "32": "so many ranks have one less.",
            "20833": "that is how many samples each rank has at least.",
            "1": "the last round is dealt out like the others: one sample to each rank, as long as there are any.",
        },
        otherwise="What is left after the last whole round?",
        why="48 × 20,833 samples are dealt out in whole rounds; 16 are left, one each for the first 16 ranks. Your "
        "sampler gives {answer:.0f} ranks one more.",
    ),
    Number(
        name="resume_position",
        text="**b** ImageNet has 1,281,167 pictures. 64 ranks took 500 batches of 32 each, then the run was stopped. "
        "What `position` does the state have?",
        answer=position,
        solution="500 * 32 * 64",
        near={
            "500 * 32": "that is what one rank took. `position` counts for all ranks together.",
            "500 * 64": "a batch has 32 pictures.",
            "500": "that is the number of steps. How many pictures does each take, on all ranks?",
            "1281167 - 500 * 32 * 64": "so many are left.",
        },
        otherwise="How many pictures does one step take, on all ranks together?",
        why="After 500 steps all ranks together have had the first 500 × 32 × 64 pictures of the order. Your sampler "
        "says {answer:,.0f}, whichever rank is asked.",
    ),
    Number(
        name="steps_left",
        text="**c** The run of question b resumes on 48 ranks, with batches of 32 and `drop_last=True`. How many whole "
        "steps are left in this epoch?",
        answer=steps_left,
        solution="(1_281_167 - 500 * 32 * 64) // (48 * 32)",
        near={
            "(1281167 - 500 * 32 * 64) // (64 * 32)": "that is for 64 ranks. A step takes fewer pictures now.",
            "1281167 // (48 * 32)": "that is a whole epoch. How many pictures are left?",
            "168": "the last one is not whole.",
            "167.41": "whole steps only.",
        },
        otherwise="How many pictures are left, and how many does a step take now?",
        why="257,167 pictures are left, and a step takes 48 × 32 = 1,536 of them. Your sampler has enough for "
        "{answer:.0f} batches on each rank.",
    ),
    Number(
        name="enough_readers",
        text="**d** A reader takes 180 ms for a batch, however many others read beside it. A step computes for 50 ms. "
        "How many readers are needed so that training does not wait for data?",
        answer=lambda: math.ceil(180 / 50),
        solution="ceil(180 / 50)",
        near={
            "3": "three readers bring a batch every 60 ms, and a step takes 50.",
            "180 / 50": "readers are whole.",
            "50 / 180": "how many steps pass while a reader reads one batch?",
            "180 - 50": "each reader reads batches of its own, beside the others.",
        },
        otherwise="How often do w readers bring a batch, and how often does training take one?",
        why="Training takes a batch every 50 ms. Three readers bring one every 60 ms, {answer:.0f} every 45.",
    ),
]
