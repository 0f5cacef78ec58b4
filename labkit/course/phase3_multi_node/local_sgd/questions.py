"""Questions of local_sgd. Predictions' answers come from the notebook's runs; the others from counting."""

from __future__ import annotations

from labkit.questions import Number

QUESTIONS = [
    Number(
        name="period_ms",
        text="**Predict**: if ranks send only after every eighth step, how many milliseconds does a step take on "
        "average?",
        answer=lambda step_ms: step_ms[8],
        solution="20 + 66 / 8",
        unit="ms",
        tolerance=0.05,
        near={
            "86 / 8": "computing takes its 20 ms in every step.",
            "20": "one step of eight still has a message.",
        },
        otherwise="Of the time above, 20 ms are computing, in every step; the rest is a message, in one step of eight.",
        why="20 ms of computing, and an eighth of the message's 66 ms: {answer:.1f} ms.",
        shown_by="the picture below",
    ),
    Number(
        name="mixed_ms",
        text="**Predict**: above are the times in which A100 and V100 compute equal batches. If the same samples are "
        "divided by speed among the two A100 and the two V100, how many milliseconds does each rank compute?",
        answer=lambda balanced_ms: balanced_ms,
        solution="4 / (2 / 48 + 2 / 108)",
        unit="ms",
        tolerance=0.03,
        near={
            "(48 + 108) / 2": "the mean of the times would be right if samples moved one for one; but a sample that "
            "leaves a V100 takes less than half of the time on an A100.",
            "48": "that takes four A100.",
        },
        otherwise="Add up speeds: in units of an equal batch an A100 does 1 / 48 in a millisecond, a V100 1 / 108.",
        why="Together they do 2 / 48 + 2 / 108 of an equal batch in a millisecond; there are four: {answer:.1f} ms.",
        shown_by="the next pictures",
    ),
    Number(
        name="computing_percent",
        text="**Predict**: on the 1 Gb/s line, with 500 inner steps for each average, in what percentage of the time "
        "do the GPUs compute?",
        answer=lambda computing: computing["1 Gb/s"][500],
        solution="100 * 500 * 0.247 / (500 * 0.247 + 58.4)",
        unit="%",
        tolerance=0.03,
        near={
            "100 * 0.247 / (0.247 + 58.4)": "that is with an average after each step.",
            "100 * 58.4 / (500 * 0.247 + 58.4)": "in that part of the time they wait.",
            "100 - 100 * 58.4 / (500 * 0.247)": "compare with all of the time, steps and average together.",
        },
        otherwise="How many seconds do 500 steps take, and how many the average after them?",
        why="500 steps take 124 s, the average 58 s: {answer:.0f} %.",
        shown_by="the picture below",
    ),
    Number(
        name="local_gb",
        text="**a** 7 billion parameters are averaged in float32 after every 100 steps, by ring all-reduces on 16 "
        "ranks. How many GB does each rank send in a step, on average?",
        answer=lambda: 2 * 15 / 16 * 7 * 4 / 100,
        solution="2 * 15 / 16 * 7 * 4 / 100",
        unit="GB",
        tolerance=0.02,
        near={
            "2 * 15 / 16 * 7 * 4": "that is one average; there is one in 100 steps.",
            "15 / 16 * 7 * 4 / 100": "a ring sends each element twice: once to add it up, once to pass on the sum.",
            "7 * 4 / 100": "a ring all-reduce sends 2 (N - 1) / N of the tensor.",
        },
        otherwise="28 GB, 2 (N - 1) / N of which each rank sends, in one step of 100.",
        why="2 · 15/16 · 28 GB in 100 steps: {answer:.3g} GB in each.",
    ),
    Number(
        name="last_loss",
        text="**b** In the last, short batch three ranks have 32, 32 and 8 samples; their mean losses are 1, 1 and 3. "
        "What is the mean loss of the batch?",
        answer=lambda: (32 + 32 + 24) / 72,
        solution="(32 * 1 + 32 * 1 + 8 * 3) / 72",
        tolerance=0.01,
        near={"5 / 3": "that is the mean of the ranks' means: it gives 8 samples the weight of 32."},
        otherwise="Add up the losses of all 72 samples.",
        why="(32 + 32 + 24) / 72 = {answer:.3g}; the mean of the ranks' means would be 1.67.",
    ),
    Number(
        name="a100_share",
        text="**c** Two A100 of 3,000 samples per second and six V100 of 1,250 share a batch of 2,048. How many "
        "samples does each A100 get?",
        answer=lambda: 2048 * 3000 / (2 * 3000 + 6 * 1250),
        solution="2048 * 3000 / (2 * 3000 + 6 * 1250)",
        unit="samples",
        tolerance=0.005,
        near={
            "2048 / 8": "so many get all, if speeds do not count.",
            "2048 * 3000 / (3000 + 1250)": "add up the speeds of all eight.",
        },
        otherwise="Its part of the batch is its part of all ranks' speed together.",
        why="3,000 of 13,500 samples per second: {answer:.0f} of 2,048.",
    ),
]
