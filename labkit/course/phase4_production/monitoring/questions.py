"""Questions of monitoring. Predictions' answers come from the notebook's runs; the others from counting."""

from __future__ import annotations

from labkit.questions import Number

QUESTIONS = [
    Number(
        name="slow_step_ms",
        text="**Predict**: if one of the eight ranks computes 1.3 times as long, how many milliseconds does a step "
        "take?",
        answer=lambda step_ms: step_ms[1.3],
        solution="1.3 * 17.3 + 2 + 0.9",
        unit="ms",
        tolerance=0.02,
        near={
            "17.3 * 8.3 / 8 + 2.9": "the mean does not matter: an all-reduce ends when the last rank has come.",
            "1.3 * 20.2": "input and message are as long as before.",
        },
        otherwise="The all-reduce waits for the slow rank: its 17.3 ms of computing become 1.3 times as long.",
        why="1.3 · 17.3 ms of computing, 2 ms of input and 0.9 ms of message, for all eight ranks: {answer:.1f} ms.",
        shown_by="the next pictures",
    ),
    Number(
        name="cost_percent",
        text="**Predict**: with an exchange after every step, by how many percent does the monitor lengthen a step of "
        "18 ms? One exchange takes as long as printed above.",
        answer=lambda cost: cost[1],
        solution="100 * 0.405 / 18.2",
        unit="%",
        tolerance=0.1,
        near={"100 * 0.405 / 18.2 / 10": "that is with an exchange after ten steps."},
        otherwise="The exchange's time over the step's, in percent.",
        why="the exchange over the step: {answer:.2g} %.",
        shown_by="the picture below",
    ),
    Number(
        name="hash_kb",
        text="**a** A model has 300 parameters with gradients; 64 ranks compare them. How many kB does "
        "`check_gradient_sync` gather on each rank, from all ranks together?",
        answer=lambda: 64 * 600 * 8 / 1000,
        solution="64 * 2 * 300 * 8 / 1000",
        unit="kB",
        tolerance=0.03,
        near={
            "64 * 300 * 8 / 1000": "gradients have fingerprints, too.",
            "600 * 8 / 1000": "that is what one rank sends.",
        },
        otherwise="A fingerprint has 8 bytes; there are two for each parameter, on each of 64 ranks.",
        why="64 ranks · 600 fingerprints · 8 bytes = {answer:.0f} kB, whatever the size of the model.",
    ),
    Number(
        name="limit_ms",
        text="**b** Five ranks compute 10, 10, 11, 12 and 40 ms. Above how many milliseconds is a rank an outlier by "
        "the deviation, 5 times 1.4826 times the median absolute deviation?",
        answer=lambda: 11 + 5 * 1.4826,
        solution="11 + 5 * 1.4826 * 1",
        unit="ms",
        tolerance=0.02,
        near={
            "16.6 + 5 * 11.7": "that is mean and standard deviation: with them the rank of 40 ms hides itself.",
            "11 + 1.4826": "five deviations above the median.",
        },
        otherwise="Sort the distances from the median, 11: 0, 1, 1, 1, 29.",
        why="the median is 11, the median distance from it 1: 11 + 5 · 1.4826 = {answer:.1f} ms.",
    ),
    Number(
        name="false_alarms",
        text="**c** An alarm at 2 standard deviations is wrong for 2.3 % of healthy values. How many false alarms do "
        "1,000 ranks raise in an hour, if they are compared once in a minute?",
        answer=lambda: 0.023 * 1000 * 60,
        solution="0.023 * 1000 * 60",
        tolerance=0.03,
        near={"0.023 * 1000": "so many in one comparison; there are 60."},
        otherwise="2.3 % of 1,000 ranks, 60 times.",
        why="0.023 · 1,000 · 60 = {answer:,.0f}: nobody looks at such alarms for long.",
    ),
]
