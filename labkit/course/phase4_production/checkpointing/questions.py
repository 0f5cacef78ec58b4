"""Questions of checkpointing. The prediction's answer comes from the notebook's run; the others from counting."""

from __future__ import annotations

from labkit.questions import Number

QUESTIONS = [
    Number(
        name="cloud_seconds",
        text="**Predict**: after how many seconds is the checkpoint written on the disk of 1 GB/s a node?",
        answer=lambda measured: measured["cloud-disk-1gb"][1],
        solution="13 * 12 / 4",
        unit="s",
        tolerance=0.05,
        near={
            "13 * 12 / 32": "the ranks of a node share its disk: the rate is that of a node, not of a rank.",
            "13 * 12": "that is with one node alone; there are four, and each writes its part.",
            "13 * 4 / 4": "Adam's two moments are in the checkpoint, too.",
        },
        otherwise="How many bytes does each of the four nodes write, at 1 GB in a second?",
        why="156 GB on four nodes, 39 GB each at 1 GB/s: {answer:.0f} s.",
        shown_by="the picture below",
    ),
    Number(
        name="rate_needed",
        text="**a** How many GB/s must each node's storage write at least, so that the 156 GB are written in two "
        "minutes by 8 nodes?",
        answer=lambda: 156 / 8 / 120,
        solution="156 / 8 / 120",
        unit="GB/s",
        tolerance=0.03,
        near={
            "156 / 4 / 120": "that is with four nodes.",
            "156 / 120": "that is one node alone.",
            "156 / 64 / 120": "that is the part of a rank; a node has eight of them.",
        },
        otherwise="Divide the bytes of a node by 120 seconds.",
        why="19.5 GB of each node in 120 s: {answer:.2f} GB/s.",
    ),
    Number(
        name="folder_gb",
        text="**b** With `keep_last_n=3`, and a best checkpoint that is an older one, how many GB does the folder have "
        "at most, while the next checkpoint of 156 GB is almost written?",
        answer=lambda: 5 * 156,
        solution="(3 + 1 + 1) * 156",
        unit="GB",
        tolerance=0.01,
        near={
            "3 * 156": "the best one stays beside them, and old ones go only when the new one is there.",
            "4 * 156": "one of the five is missing: three, the best one, and the one that is being written.",
        },
        otherwise="Which folders are there just before the rename? Nothing is removed before.",
        why="Three, the best one, and the one that is being written, since nothing goes before that is safe: "
        "{answer:.0f} GB.",
    ),
    Number(
        name="lost_minutes",
        text="**c** Checkpoints begin every 30 minutes, and each is written 6 minutes later. A node dies at a random "
        "moment. How many minutes of training are lost on average?",
        answer=lambda: 6 + 15,
        solution="6 + 30 / 2",
        unit="minutes",
        tolerance=0.02,
        near={
            "30 / 2": "a checkpoint that is still being written does not help: until then, the one before counts.",
            "30 + 6": "that is the most that can be lost.",
        },
        otherwise="Right after a checkpoint is complete, how old is it? And right before the next one is?",
        why="The newest complete one is between 6 and 36 minutes old: {answer:.0f} on average.",
    ),
]
