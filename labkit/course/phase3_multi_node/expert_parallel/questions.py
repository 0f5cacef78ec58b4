"""Questions of expert_parallel. Answers follow from counting rows, predictions' from the runs."""

from __future__ import annotations

from labkit.questions import Number

QUESTIONS = [
    Number(
        name="busiest_ms",
        text="**Predict**: above is the time of a layer in which each expert gets as many rows. In the second of the "
        "three cases the busiest rank gets about three times the mean. How many milliseconds does the layer take then?",
        answer=lambda times: times[1],
        solution="23.2 * 2.97",
        unit="ms",
        tolerance=0.15,
        near={
            "23.2": "the mean is the same, but ranks wait for each other, twice.",
            "23.2 * 5.45": "that is the third case.",
        },
        otherwise="All ranks wait for the one with the most rows: for its experts, and twice for its port.",
        why="Nearly everything in this layer is proportional to rows, and the busiest rank has most: {answer:.0f} ms.",
        shown_by="the picture below",
    ),
    Number(
        name="crossing_rows",
        text="**Predict**: a token chooses 8 experts on at most 4 of 8 nodes, and is sent once to each of its nodes. "
        "How many rows of a token cross between nodes, on average? One of its nodes may be its own.",
        answer=lambda once: once[2],
        solution="4 * 7 / 8",
        unit="rows",
        tolerance=0.04,
        near={
            "4": "its own node is one of the eight, and may be among the four.",
            "8 * 7 / 8": "that is a row for each choice; here it is one for each node.",
        },
        otherwise="How many nodes does a token use? And which share of nodes is not its own?",
        why="4 nodes, of which 7/8 are not its own: {answer:.2f} rows, instead of 7 with a row for each choice.",
        shown_by="the picture below",
    ),
    Number(
        name="dispatch_mb",
        text="**a** A rank has 4,096 tokens of 7,168 numbers in bfloat16, top_k is 8, and nothing is dropped. How many "
        "MB of rows does it pass to the all-to-all of a dispatch?",
        answer=lambda: 4096 * 8 * 7168 * 2 / 1e6,
        solution="4096 * 8 * 7168 * 2 / 1e6",
        unit="MB",
        tolerance=0.01,
        near={
            "4096 * 7168 * 2 / 1e6": "a token has eight choices, each with a row of its own.",
            "4096 * 8 * 7168 / 1e6": "a bfloat16 has two bytes.",
        },
        otherwise="How many rows are there, and how many bytes has one?",
        why="32,768 rows of 14,336 bytes: {answer:.0f} MB, as many again on the way back, and both again backward.",
    ),
    Number(
        name="collapsed_loss",
        text="**b** A router with 64 experts and top_k 1 sends all tokens to one expert, with the probability 0.5. How "
        "large is its load-balancing loss?",
        answer=lambda: 64 * 0.5,
        solution="64 * 1 * 0.5",
        tolerance=0.01,
        near={
            "0.5": "times the number of experts: with equal shares and probabilities the loss is 1.",
            "64": "the share of the choices is 1, the mean probability is not.",
        },
        otherwise="Number of experts × Σ (share of the choices × mean probability): which terms of the sum are not 0?",
        why="64 × 1 × 0.5 = {answer:.0f}. Its gradient lowers the probability of that expert; shares have no gradient.",
    ),
    Number(
        name="dropped_share",
        text="**c** Of 8 experts one gets half of the choices, and the others have equal shares of the rest. With the "
        "capacity factor 1.25, which share of all choices is dropped?",
        answer=lambda: 0.5 - 1.25 / 8,
        solution="0.5 - 1.25 / 8",
        tolerance=0.01,
        near={
            "1.25 / 8": "that is the share for which the expert has room.",
            "0.5 - 1 / 8": "the capacity is 1.25 times the fair share.",
        },
        otherwise="For which share of all choices has an expert room? Which experts get more than that?",
        why="An expert has room for 1.25/8 of the choices. The busy one gets 1/2, the others 1/14 each, so "
        "{answer:.2f} of all choices are dropped.",
    ),
]
