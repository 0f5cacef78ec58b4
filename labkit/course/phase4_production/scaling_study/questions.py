"""Questions of scaling_study. Predictions' answers come from the notebook's runs and tables; the others by counting."""

from __future__ import annotations

from labkit.questions import Number

QUESTIONS = [
    Number(
        name="efficiency_64",
        text="**Predict**: the table says 78 % for 64 GPUs, with 56,320 images/s, and 1,150 on one GPU. What "
        "efficiency, in percent, do these throughputs make?",
        answer=lambda efficiency: efficiency[64],
        solution="100 * 56320 / (64 * 1150)",
        unit="%",
        tolerance=0.005,
        near={
            "78": "that is what is stated.",
            "100 - 18.2": "that is 100 less the stated overhead.",
        },
        otherwise="Images per second of a GPU: 56,320 / 64. Compared with 1,150.",
        why="56,320 / 64 = 880 images/s for each GPU, over 1,150: {answer:.1f} %.",
        shown_by="the next cells",
    ),
    Number(
        name="strong_32",
        text="**Predict**: strong scaling on 32 GPUs: 512 samples together, 50 ms for 32 samples, 5 ms of "
        "communication. What efficiency, in percent?",
        answer=lambda strong: strong[32],
        solution="100 * 25 / (25 + 5)",
        unit="%",
        tolerance=0.02,
        near={
            "100 * 50 / 55": "that is weak scaling: each GPU keeps 32 samples.",
            "100 * 800 / 30": "that is the speedup in percent; divide by 32.",
        },
        otherwise="16 samples for each GPU take 25 ms.",
        why="16 samples take 25 ms, the step 30: {answer:.0f} %. The same 5 ms cost weak scaling 9 %.",
        shown_by="the picture below",
    ),
    Number(
        name="dgx_64",
        text="**Predict**: your DDP on 64 virtual GPUs, with eight cards of 200 Gb/s in each node: what efficiency, in "
        "percent?",
        answer=lambda dgx: 100 * dgx[1].seconds / dgx[64].seconds,
        solution="99.5",
        unit="%",
        tolerance=0.02,
        near={
            "78": "as stated. But 102 MB take 20 ms at 10 GB/s, and 37 ms of backward pass hide them.",
        },
        otherwise="2 * 102 MB over 25 GB/s take 8 ms on each card, while the backward pass takes 37 ms: what is left?",
        why="the messages take a few milliseconds, which the backward pass hides: {answer:.1f} %. Input, hosts and "
        "slower GPUs cost real nodes more.",
        shown_by="the picture below",
    ),
    Number(
        name="dollars",
        text="**a** An epoch takes 10 minutes on 64 GPUs, with an efficiency of 80 %. One GPU and hour costs 2 "
        "dollars. How many dollars would the same epoch cost on one GPU?",
        answer=lambda: 0.8 * 64 * 2 / 6,
        solution="0.8 * 64 * 10 / 60 * 2",
        unit="dollars",
        tolerance=0.02,
        near={
            "64 * 10 / 60 * 2": "that is what it costs on 64; a fifth of their time is lost.",
            "64 * 10 / 60 * 2 / 0.8": "one GPU loses nothing: it is cheaper.",
        },
        otherwise="64 GPUs for 10 minutes are 10.7 GPU hours; 80 % of them do the work of one.",
        why="0.8 · 64 · 1/6 hours · 2 dollars = {answer:.2f}: an efficiency is also a price.",
    ),
    Number(
        name="amdahl_limit",
        text="**b** Strong scaling: 2 % of one GPU's time cannot be divided. How many times as fast as one GPU are 64?",
        answer=lambda: 1 / (0.02 + 0.98 / 64),
        solution="1 / (0.02 + 0.98 / 64)",
        tolerance=0.02,
        near={
            "50": "that is the limit for infinitely many.",
            "0.02 + 0.98 * 64": "that is Gustafson's law: the work would grow with the GPUs.",
        },
        otherwise="Amdahl: 1 over the serial share and the 64th part of the rest.",
        why="1 / (0.02 + 0.98 / 64) = {answer:.1f}, of 50 at most.",
    ),
    Number(
        name="overhead_efficiency",
        text="**c** Exposed communication takes 25 % of each step. What is communication over computation?",
        answer=lambda: 1 / 3,
        solution="0.25 / 0.75",
        tolerance=0.02,
        near={"0.25": "that is its share of the step; the ratio is over computing alone."},
        otherwise="Of 100 ms, 25 are communication and 75 computing.",
        why="25 over 75: {answer:.3f}. So a step is a third longer than without it, and efficiency is 75 %.",
    ),
]
