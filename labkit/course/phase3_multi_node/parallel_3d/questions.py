"""Questions of parallel_3d. Answers follow from counting ranks, bytes and FLOPs, predictions' from the notebook."""

from __future__ import annotations

from labkit.questions import Number

QUESTIONS = [
    Number(
        name="tensor_gb",
        text="A mesh of dp 4, pp 2 and tp 8. Each data-parallel rank has 16 sequences of 2,048 tokens, "
        "and each stage one block of width 8,192. A block has four all-reduces of its activations in bfloat16, two of "
        "them backward. How many GB does a rank give to its tensor-parallel group in a step?",
        answer=lambda: 4 * 16 * 2048 * 8192 * 2 / 1e9,
        solution="4 * 16 * 2048 * 8192 * 2 / 1e9",
        unit="GB",
        tolerance=0.03,
        near={
            "4 * 16 * 2048 * 8192 / 1e9": "a number of bfloat16 has 2 bytes.",
            "4 * 16 * 2048 * 8192 * 2 / 1e9 / 8": "an all-reduce takes the whole activation from each rank.",
        },
        otherwise="An activation has 16 * 2,048 * 8,192 numbers of 2 bytes. How many of them are reduced?",
        why="Four, of 0.54 GB each: {answer:.2f} GB.",
    ),
    Number(
        name="rank_43",
        text="64 ranks count along tp first, then along dp, then along pp. On a mesh of dp 2, pp 4 and tp "
        "8, which rank has the places dp 1, pp 2 and tp 3? All count from 0.",
        answer=lambda: (2 * 2 + 1) * 8 + 3,
        solution="(2 * 2 + 1) * 8 + 3",
        tolerance=0,
        near={
            "(1 * 4 + 2) * 8 + 3": "that order is tp, pp, dp.",
            "(3 * 2 + 1) * 4 + 2": "tp counts fastest: its neighbours are 1 apart.",
        },
        otherwise="Neighbours along tp are 1 apart, along dp 8, along pp 2 * 8.",
        why="2 * 16 along pp, 1 * 8 along dp, and 3: rank {answer:.0f}.",
    ),
    Number(
        name="slowest_ms",
        text="**Predict**: the best of all layouts below takes 162 ms a step. How many does the one with tensor "
        "parallelism alone take, tp 64 over eight nodes? A guess within a quarter counts.",
        answer=lambda steps: steps[1, 1, 64] * 1e3,
        solution="462",
        unit="ms",
        tolerance=0.25,
        near={
            "162": "its all-reduces of activations cross nodes, and nothing is computed meanwhile.",
            "162 * 12": "that is how much slower the links between nodes are; a step computes, too.",
        },
        otherwise="What takes longer between nodes, and which share of the best layout's step does it have?",
        why="{answer:.0f} ms: almost three times as long as the best.",
        shown_by="the picture below",
    ),
    Number(
        name="mfu_percent",
        text="**a** Narayanan et al. 2021 report 140 TFLOP/s for each A100, of 312. They count full recomputation: "
        "four passes of forward's size, where a model needs three. Leave out recomputation, and nothing else: what MFU "
        "is that, in percent?",
        answer=lambda: 140 * 3 / 4 / 312 * 100,
        solution="140 * 3 / 4 / 312 * 100",
        unit="%",
        tolerance=0.01,
        near={
            "140 / 312 * 100": "that is the hardware's share, HFU, recomputation included.",
            "140 * 2 / 3 / 312 * 100": "backward is two of three, and the recomputed forward is a fourth.",
        },
        otherwise="MFU counts what the model needs: one forward, and twice that backward.",
        why="Three of four passes: 105 TFLOP/s, {answer:.1f} %. They also count masked pairs of attention; without "
        "those it is 33.2 %.",
    ),
    Number(
        name="bubble_percent",
        text="**b** 1F1B with 16 stages and 192 microbatches: which share of a step is a rank idle, in percent?",
        answer=lambda: 15 / 207 * 100,
        solution="15 / (192 + 15) * 100",
        unit="%",
        tolerance=0.01,
        near={
            "15 / 192 * 100": "that is the bubble over the useful time; the step has both.",
            "16 / 208 * 100": "a microbatch passes 15 other stages.",
        },
        otherwise="A step has as many slots as microbatches, and one for each other stage.",
        why="15 of 207 slots: {answer:.1f} %.",
    ),
    Number(
        name="gradients_gb",
        text="**c** 175 billion parameters on pp 16 and tp 8: how many GB of bfloat16 gradients does a rank average "
        "with its data-parallel group?",
        answer=lambda: 175 / 128 * 2,
        solution="175 / (16 * 8) * 2",
        unit="GB",
        tolerance=0.03,
        near={
            "175 * 2": "each rank has 1/16 of the layers, and 1/8 of each.",
            "175 / 16 * 2": "tensor parallelism divides them by 8, too.",
            "175 / 128": "bfloat16 has 2 bytes.",
            "175 / 1024 * 2": "data-parallel ranks have the same parameters.",
        },
        otherwise="Which share of the parameters does a rank hold?",
        why="A 128th, 2 bytes each: {answer:.2f} GB, once a step.",
    ),
]
