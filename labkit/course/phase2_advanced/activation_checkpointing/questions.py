"""Questions of activation_checkpointing. Calls are counted in the learner's module."""

from __future__ import annotations

from typing import Any

import torch

from labkit.questions import Choice, Number


def calls_of_layers() -> float:
    """Count the calls of 50 layers in 8 segments, forward and backward."""
    from labkit.exercises import activation_checkpointing

    called: list[torch.Tensor] = []

    def layer(x: torch.Tensor) -> torch.Tensor:
        called.append(x)
        return x.sin()

    x = torch.ones(1, requires_grad=True)
    activation_checkpointing.checkpoint_sequential([layer] * 50, 8, x).sum().backward()
    return len(called)


def seconds_at_best(steps: list[Any]) -> float:
    """Return the seconds of a step with offloading where all but the copies is 100 times as fast."""
    copies = steps[-1][1] - steps[0][1]
    return float(copies + steps[0][1] / 100)


QUESTIONS = [
    Choice(
        name="held_in_backward",
        text="**Before you go on**: suppose that you save nothing but each layer's input. What do you have to hold at "
        "one time in the backward pass?",
        options={
            "the activations of all layers": "a layer's activations can be computed from its input when its turn "
            "comes, and dropped after it.",
            "the inputs of all layers, and the activations of one": "",
            "the input and the activations of one layer": "the other layers' turns come later; where do they get their "
            "inputs from?",
            "nothing": "the backward pass needs activations. Where do they come from?",
        },
        why="Inputs wait for their layer's turn; then that layer alone is computed again, and its activations are gone "
        "when its gradients are there.",
    ),
    Number(
        name="best_segments",
        text="**a** 100 layers, each of which saves one tensor of its input's size. Into how many segments do you cut "
        "them to hold the fewest tensors?",
        answer=lambda: min(range(1, 101), key=lambda k: k + 100 / k),
        solution="sqrt(100)",
        near={
            "100": "then 100 inputs are held.",
            "1": "then nothing is dropped: all 100 are held.",
            "50": "then 50 inputs are held, and 2 tensors of the segment.",
            "20": "that holds 25 tensors. The least is fewer.",
        },
        otherwise="k segments hold k + 100/k tensors. Where is that least?",
        why="k + 100/k is least at √100: {answer:.0f} inputs and 10 tensors of one segment, 20 in place of 100.",
    ),
    Number(
        name="layer_calls",
        text="**b** 50 layers in 8 segments by your `checkpoint_sequential`: how many calls of layers are there in a "
        "step, forward and backward together?",
        answer=calls_of_layers,
        solution="50 + (50 - 6)",
        near={
            "100": "one segment is not called again. Which?",
            "50": "that is the forward pass.",
            "50 + 43": "the segments have 6 or 7 layers, the shorter ones last.",
            "50 + 42": "the 2 layers that do not divide are spread over the first segments.",
        },
        otherwise="How many layers does the last segment have?",
        why="Segments have 7, 7 and then six times 6 layers, and the last one is not called again. Your code made "
        "{answer:.0f} calls just now.",
    ),
    Number(
        name="offload_seconds",
        text="**c** A GPU computes 100 times as fast as before, and the link to the host is what it was. Part 6 "
        "printed the seconds of a step in one segment and with offloading. How long does a step with offloading take "
        "at least, if everything but the copies becomes 100 times as fast?",
        answer=seconds_at_best,
        solution="3.27 - 2.40 + 2.40 / 100",
        unit="s",
        tolerance=0.05,
        near={
            "3.27 / 100": "the copies do not become faster.",
            "2.40 / 100": "that is the step without offloading.",
            "3.27": "that is the step as it was: computing becomes faster, at least.",
        },
        otherwise="How long do the copies take?",
        why="The copies take what the step with offloading is longer, and stay; the rest is a hundredth: {answer:.2f} "
        "s in all. The faster the GPU, the more the link decides.",
    ),
]
