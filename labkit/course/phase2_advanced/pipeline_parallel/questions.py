"""Questions of pipeline_parallel. Schedules and runs are those of the learner's module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.questions import Number


def microbatches_for_a_tenth() -> float:
    """Return the fewest microbatches whose bubble is a tenth, on eight ranks, by the learner's schedule."""
    from labkit.exercises import pipeline_parallel as pp

    return next(m for m in range(8, 200) if pp.bubble_fraction(pp.one_f_one_b_schedule(8, m)) < 0.1 + 1e-9)


def kept_on_rank_5() -> float:
    """Return the microbatches whose activations rank 5 of 16 keeps at most."""
    from labkit.exercises import pipeline_parallel as pp

    return float(pp.most_in_flight(pp.one_f_one_b_schedule(16, 64))[5])


def sent_by_rank_1(on_gpus: Callable[..., Any]) -> float:
    """Return what rank 1 sends in a step, in activations of one microbatch; the message with the shape is left out."""
    return float(on_gpus(4, "1f1b", 8).trace.bytes_sent(rank=1) // (64 * 128 * 4))


QUESTIONS = [
    Number(
        name="kept_by_1f1b",
        text="**Predict**: with 16 microbatches GPipe holds 4.2 MB of activations on rank 0. How many MB does 1F1B "
        "hold there?",
        answer=lambda runs, most_activations: most_activations(runs["1f1b"][-1].trace) / 1e6,
        solution="4.2 * 4 / 16",
        unit="MB",
        tolerance=0.2,
        near={"4.2": "with GPipe all 16 microbatches are held. When does 1F1B begin to free some?"},
        otherwise="Of how many microbatches does rank 0 hold activations before its first backward?",
        why="Rank 0 does four forwards before the first backward comes back to it, and from then on frees one "
        "microbatch for each new one: 4 of 16. In the run it was {answer:.1f} MB.",
        shown_by="the picture below",
    ),
    Number(
        name="kept_with_recompute",
        text="**Predict**: with 16 microbatches GPipe holds 4.2 MB of activations on rank 0, beside their inputs. How "
        "many MB with recompute?",
        answer=lambda again, most_activations: most_activations(again["gpipe", True].trace) / 1e6,
        solution="4.2 / 16",
        unit="MB",
        tolerance=0.3,
        near={
            "4.2 * 4 / 16": "that is 1F1B, without recompute.",
            "4.2": "which activations are there before the first backward, if stages keep inputs only?",
            "0": "a backward needs all activations of its microbatch, and the stage makes them again.",
        },
        otherwise="All activations of how many microbatches are there at the same time?",
        why="Only the microbatch that is in its backward has activations: 4.2 MB / 16. In the run it was {answer:.2f} "
        "MB: the gradients that pass between two layers are there, too.",
        shown_by="the picture below",
    ),
    Number(
        name="bubble_of_16",
        text="**Predict**: 16 GPUs, each a stage, and 16 microbatches. What percentage of the time is bubble?",
        answer=lambda wide: wide[-1],
        solution="100 * 15 / (16 + 15)",
        unit="%",
        tolerance=0.15,
        near={
            "15 / (16 + 15)": "that is the share. In percent it is a hundred times as much.",
            "100 * 3 / (16 + 3)": "that is for four GPUs.",
            "100 * 15 / 16": "the time is that of the microbatches *and* of the bubble.",
        },
        otherwise="A rank of p waits for p − 1 slots of m + p − 1.",
        why="By the formula 15 of 31 slots are bubble, 48 %; in the run, which has messages and a loss, {answer:.0f} "
        "%. Four times as many microbatches would bring it to a fifth.",
        shown_by="the picture below",
    ),
    Number(
        name="microbatches",
        text="**a** Eight ranks, 1F1B: how many microbatches make the bubble 10 % of the time?",
        answer=microbatches_for_a_tenth,
        solution="9 * 7",
        near={
            "70": "that is microbatches and bubble together: (p − 1) / (m + p − 1) is a tenth.",
            "7": "then half of the time is bubble.",
            "9 * 8": "a rank of eight waits for seven others.",
            "10 * 8": "a rank of eight waits for seven others, and the tenth is one of the whole.",
        },
        otherwise="For how many slots does a rank wait, and of how many is that a tenth?",
        why="A rank waits for 7 slots, which is a tenth of 70, so {answer:.0f} are microbatches. Your "
        "`one_f_one_b_schedule` has exactly that bubble.",
    ),
    Number(
        name="kept_on_rank_5",
        text="**b** Sixteen ranks, 64 microbatches, 1F1B: of how many microbatches does rank 5 keep activations at "
        "most?",
        answer=kept_on_rank_5,
        solution="16 - 5",
        near={
            "16": "that is rank 0. Rank 5 is nearer to the end.",
            "16 - 5 - 1": "count its own forward, too, before the first backward.",
            "5": "the last rank keeps 1: count from the other end.",
            "6": "the last rank keeps 1: count from the other end.",
            "64": "that is GPipe.",
        },
        otherwise="How many forwards does it do before the first backward comes to it?",
        why="The last rank keeps 1, and each one before it one more. In your schedule rank 5 has {answer:.0f} in "
        "flight at most, whatever the number of microbatches.",
    ),
    Number(
        name="sent_megabytes",
        text="**c** Four ranks, 1F1B, eight microbatches, activations of 1 MB each: how many MB does rank 1 send in "
        "one step, gradients included?",
        answer=sent_by_rank_1,
        solution="2 * 8",
        unit="MB",
        near={
            "8": "in the middle of the pipeline a rank has two neighbours: activations go to one, gradients to the "
            "other.",
            "4 * 8": "what it receives was sent by others.",
            "2": "that is for one microbatch.",
        },
        otherwise="What does it send down, what up, and how often?",
        why="An activation down and a gradient up for each of eight microbatches. In a run of part 5's step rank 1 "
        "sent {answer:.0f} times an activation's bytes.",
    ),
]
