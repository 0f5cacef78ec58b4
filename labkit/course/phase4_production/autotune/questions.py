"""Questions of autotune. Predictions' answers come from the notebook's runs; the others from counting."""

from __future__ import annotations

import math

from labkit.questions import Number

QUESTIONS = [
    Number(
        name="hours",
        text="If measuring a layout takes three minutes, how many hours does it take to measure all of them?",
        answer=lambda space: len(space.all()) * 3 / 60,
        solution="567 * 3 / 60",
        unit="hours",
        tolerance=0.03,
        near={"567 * 3": "those are minutes."},
        otherwise="Their number, times three minutes, in hours.",
        why="three minutes for each layout: {answer:.0f} hours of 32 GPUs, before the first step of training.",
    ),
    Number(
        name="tuned_step",
        text="**Predict**: how many seconds does a step take with the layout that your tuner finds, by at most 96 of "
        "the 567 measurements?",
        answer=lambda tuned: tuned.seconds,
        solution="1.01 * 3.9",
        unit="s",
        tolerance=0.1,
        near={"1.69 * answer": "so long takes the guess of part 1, as it was before you changed it."},
        otherwise="Look at the circle in the picture of all layouts: how near to it does a tuner come?",
        why="within a few percent of the best of all, which the picture of part 1 has in its circle: {answer:.2f} s.",
        shown_by="the next picture",
    ),
    Number(
        name="rungs",
        text="**a** 27 configurations begin with 10 steps; one in three goes on, three times as long, to the last one. "
        "How many steps is that in all?",
        answer=lambda: 4 * 27 * 10,
        solution="27 * 10 + 9 * 30 + 3 * 90 + 1 * 270",
        unit="steps",
        tolerance=0.01,
        near={"27 * 10": "that is the first of four rungs.", "27 * 270": "that is without stopping any."},
        otherwise="A third of the trials, three times as long: what does each rung cost, and how many are there?",
        why="four rungs of 270 steps: {answer:,.0f}. Without stopping it would be 27 · 270 = 7,290.",
    ),
    Number(
        name="bisection",
        text="**b** A batch of 1,000 fits, 1,001 does not. How many steps does `find_batch_size` try at most, by "
        "doubling from 1 and bisection?",
        answer=lambda: 2 * math.ceil(math.log2(1001)) + 1,
        solution="2 * 10 + 1",
        unit="steps",
        tolerance=0.05,
        near={"10": "bisection alone; the doubling before it takes as many."},
        otherwise="1, 2, 4, ... up to 1,024: how many? Then half of what is left, and so on.",
        why="eleven from 1 to 1,024, and nine or ten to halve what is between 512 and 1,024: at most {answer:.0f}, "
        "instead of 1,001.",
    ),
    Number(
        name="adam",
        text="**c** A model trains with Adam, a batch of 256 and a learning rate of 3e-4. With which learning rate "
        "does it train with a batch of 4,096?",
        answer=lambda: 3e-4 * math.sqrt(4096 / 256),
        solution="3e-4 * 16 ** 0.5",
        tolerance=0.02,
        near={"3e-4 * 16": "that is SGD's rule. Adam divides by the gradients' size already."},
        otherwise="The batch is 16 times as large; with Adam the root counts.",
        why="3e-4 · √16 = {answer:.4f}.",
    ),
]
