"""Questions of fault_tolerance. Predictions' answers come from the notebook's runs; the others from counting."""

from __future__ import annotations

from labkit.hardware.storage import STORAGE
from labkit.questions import Number

QUESTIONS = [
    Number(
        name="first_again",
        text="**Predict**: a checkpoint is saved after every third step, and rank 1 is killed in step 9, when eight "
        "are done. With which step does the second attempt begin?",
        answer=lambda killed: killed.attempts[1].first_step + 1,
        solution="8 // 3 * 3 + 1",
        near={
            "9": "what steps 7 and 8 did is in no checkpoint: it died with the ranks.",
            "6": "step 6 is in the checkpoint.",
            "8": "which step does the last checkpoint have?",
            "1": "the last checkpoint has six steps.",
        },
        otherwise="Which step does the last checkpoint have?",
        why="The last checkpoint has six steps, so step {answer:.0f} is next; two steps are done again.",
        shown_by="the picture below",
    ),
    Number(
        name="best_goodput",
        text="**Predict**: with a failure every 3.1 hours, 60 seconds for a checkpoint and 3 minutes for a restart, in "
        "what percentage of the time does the job make progress, if it saves as often as is best?",
        answer=lambda shares: max(shares.values()),
        solution="100 * (1 - (2 * 60 / 11150) ** 0.5 - 180 / 11150)",
        unit="%",
        tolerance=0.01,
        near={
            "100 * (1 - 180 / 11150)": "checkpoints, and the work since the last one, cost time, too.",
            "100 * (1 - (2 * 60 / 11150) ** 0.5)": "each failure also costs its restart.",
        },
        otherwise="Young's interval is about 19 minutes. How much of it is a checkpoint? A failure costs half an "
        "interval on average, and a restart.",
        why="About 60 s of every 19 minutes for checkpoints, as much for work done twice, 180 s of 3.1 hours "
        "for restarts: {answer:.1f} %.",
        shown_by="the picture below",
    ),
    Number(
        name="uneven_share",
        text="**a** Three ranks share a global batch of 128. How many samples does rank 0 have?",
        answer=lambda: 43,
        solution="-(-128 // 3)",
        near={"128 / 3": "samples are whole.", "42": "126 samples are then dealt out; who gets the other two?"},
        otherwise="Sample i goes to rank i % 3.",
        why="Samples 0, 3, ..., 126: {answer:.0f}. Ranks 0 and 1 have 43, rank 2 has 42: they count by their samples.",
    ),
    Number(
        name="load_seconds",
        text="**b** A model of 13 billion parameters has 14 bytes of state for each. Four machines read it, each a "
        "quarter, from network disks of 1 GB/s a machine. How many seconds does that take?",
        answer=lambda: STORAGE["cloud-disk-1gb"].read_seconds(13e9 * 14 / 4),
        solution="13 * 14 / 4",
        unit="s",
        tolerance=0.02,
        near={
            "13 * 14": "each machine reads only its quarter.",
            "13 * 2 / 4": "the optimizer's state and the float32 weights are read, too.",
        },
        otherwise="182 GB on four disks.",
        why="45.5 GB at 1 GB/s: {answer:.0f} s.",
    ),
    Number(
        name="gpu_hours",
        text="**c** 16,384 GPUs save every 20 minutes. How many GPU-hours of work does a failure destroy on average?",
        answer=lambda: 16_384 * 10 / 60,
        solution="16384 * 10 / 60",
        unit="GPU-hours",
        tolerance=0.02,
        near={
            "16384 * 20 / 60": "a failure comes at any moment of the interval: on average in its middle.",
            "10 / 60": "all GPUs lose it.",
        },
        otherwise="How many minutes have passed since the last checkpoint, on average?",
        why="Half an interval of all GPUs: 16,384 · 10 minutes = {answer:,.0f} GPU-hours.",
    ),
]
