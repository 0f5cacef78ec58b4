"""Questions of trainer. Messages are those of the notebook's runs."""

from __future__ import annotations

from typing import Any

from labkit.questions import Number


def bytes_of_an_all_reduce(runs: dict[int, Any]) -> float:
    """Return the bytes that rank 0 gave to an all-reduce of part 5, on four ranks."""
    return float(next(event.nbytes for event in runs[4].trace.collectives(0) if event.operation == "all_reduce"))


def rate_in_the_middle() -> float:
    """Return the learner's learning rate half-way through a warm-up of 100 steps."""
    from labkit.exercises import trainer

    return float(trainer.scaled_learning_rate(0.1, 32 * 64, 50, warmup_steps=100))


QUESTIONS = [
    Number(
        name="through_rank_0",
        text="**Predict**: a message with these gradients takes 0.4 ms. How many milliseconds does `gather_scatter` "
        "communicate in a step on 32 machines?",
        answer=lambda steps_of: 1e3 * steps_of[-1]["gather_scatter"][1],
        solution="2 * 31 * 0.45",
        unit="ms",
        tolerance=0.3,
        near={
            "31 * 0.4": "so long does it take until rank 0 has everything. What it makes of it has to go out again.",
            "0.8": "all messages go through the port of rank 0, one after the other.",
            "10 * 0.4": "that is a tree, which passes messages on all levels at the same time.",
        },
        otherwise="How many messages have to pass through the port of rank 0?",
        why="31 messages come in through rank 0's port and 31 go out, each 0.4 ms and a latency. In the run it was "
        "{answer:.0f} ms; `flat` takes a twentieth of that.",
        shown_by="the picture below",
    ),
    Number(
        name="reductions",
        text="**a** How many all-reduces does `per_parameter` need for each step of the model of part 5, two linear "
        "layers with biases, if loss and number of samples go in one of their own?",
        answer=lambda: 2 * 2 + 1,
        solution="2 * 2 + 1",
        near={
            "2": "that is the number of layers. What are the parameters of a linear layer?",
            "3": "a linear layer has two parameters.",
            "4": "loss and number of samples go in one more.",
            "6": "loss and number of samples go together, in one.",
        },
        otherwise="What are the parameters of a linear layer?",
        why="Each layer has a weight and a bias: four parameters, and one more message for loss and samples.",
    ),
    Number(
        name="flat_bytes",
        text="**b** How many bytes has the message of that model when `flat`: gradients, a number `present` for each "
        "parameter, loss and weight, in float32? Its layers are 64 to 256 and 256 to 10.",
        answer=bytes_of_an_all_reduce,
        solution="4 * (64 * 256 + 256 + 256 * 10 + 10 + 4 + 2)",
        unit="bytes",
        near={
            "64 * 256 + 256 + 256 * 10 + 10 + 4 + 2": "so many numbers. How many bytes has each?",
            "4 * (64 * 256 + 256 + 256 * 10 + 10)": "those are the gradients alone. What travels with them?",
            "4 * (64 * 256 + 256 + 256 * 10 + 10 + 4)": "loss and weight are missing.",
            "4 * (64 * 256 + 256 + 256 * 10 + 10 + 2)": "the numbers `present` are missing, one for each parameter.",
            "4 * (64 * 256 + 256 * 10 + 4 + 2)": "layers have biases, too.",
        },
        otherwise="How many numbers are there: weights, biases, `present`, loss and weight?",
        why="19,210 gradients and 6 numbers more, 4 bytes each. In part 5 rank 0 gave {answer:,.0f} bytes to each "
        "all-reduce.",
    ),
    Number(
        name="warm_up_rate",
        text="**c** 32 ranks with 64 samples each; a learning rate of 0.1 is right for a batch of 256. What is the "
        "learning rate half-way through the warm-up?",
        answer=rate_in_the_middle,
        solution="0.1 * (1 + 8) / 2",
        near={
            "0.8": "that is the rate after the warm-up.",
            "0.4": "a warm-up does not begin at 0 here, but at the rate for the small batch.",
            "0.1": "that is where the warm-up begins.",
        },
        otherwise="By what factor is the batch larger, and where does a warm-up begin?",
        why="The batch is 2,048, eight times 256, so the warm-up goes from 0.1 to 0.8; half-way it is in the middle. "
        "Your `scaled_learning_rate` says {answer:.2f} there.",
    ),
    Number(
        name="break_even",
        text="**d** On 16 ranks a step communicates for 90 ms, which nothing hides. For how many milliseconds must "
        "each rank compute in a step so that the 16 are just as fast as one rank alone, in samples per second?",
        answer=lambda: 90 / (16 - 1),
        solution="90 / (16 - 1)",
        unit="ms",
        near={
            "90": "then half of the step is computing, and the 16 are eight times as fast as one.",
            "90 / 16": "the 16 ranks have to compute, too, before they communicate.",
            "15 * 90": "one rank alone needs 16 times as long as each of the 16 computes. How much longer is that?",
            "10": "that would be a tenth of the step. How many batches does a step train on?",
        },
        otherwise="How long does one rank alone take for the batches of all 16?",
        why="The 16 take c + 90 ms for 16 batches, one rank alone 16 c. With {answer:.0f} ms of computing both take "
        "96 ms; with less, one rank is faster than 16.",
    ),
]
