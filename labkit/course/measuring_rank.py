"""A rank that measures for the others: they know only what they have asked for, and each question is counted.

The learner's code runs on the other ranks only. On the last rank the rubric's own function answers, so its log of the
questions can be trusted.

    if rank == world_size - 1:
        return answer(lookup, askers=[0])                  # on the measuring rank: the log of each asker
    measure = lambda bucket: ask(world_size - 1, bucket)[0]
    ...
    stop(world_size - 1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

_NUMBERS = 8
"""Length of a message, whose first number counts the others; -1 there: the asker has no more questions."""


def ask(rank: int, *numbers: float) -> tuple[float, float]:
    """Ask the measuring rank about these numbers, 7 at most. Raises `ValueError` if it knows no such case."""
    message = torch.zeros(_NUMBERS, dtype=torch.float64)
    message[0] = len(numbers)
    message[1 : 1 + len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
    dist.send(message, rank)
    reply = torch.empty(2, dtype=torch.float64)
    dist.recv(reply, rank)
    first, second = reply.tolist()
    if math.isnan(second):
        raise ValueError(f"there is nothing to measure for {numbers}")
    return first, second


def stop(rank: int) -> None:
    """Let the measuring rank end."""
    message = torch.zeros(_NUMBERS, dtype=torch.float64)
    message[0] = -1
    dist.send(message, rank)


def answer(
    lookup: Callable[[int, tuple[float, ...]], Sequence[float] | None], askers: Sequence[int]
) -> list[list[list[float]]]:
    """On the measuring rank: answer the askers, one question of each in turn, until all stop.

    `lookup(asker, numbers)` returns two numbers, or None for an unknown case. Returns the questions of each
    asker.
    """
    log: dict[int, list[list[float]]] = {asker: [] for asker in askers}
    active = list(askers)
    while active:
        for asker in list(active):
            message = torch.empty(_NUMBERS, dtype=torch.float64)
            dist.recv(message, asker)
            count, *numbers = message.tolist()
            if count < 0:
                active.remove(asker)
                continue
            question = numbers[: int(count)]
            log[asker].append(question)
            result = lookup(asker, tuple(question))
            reply = (0.0, math.nan) if result is None else tuple(map(float, result))
            dist.send(torch.tensor(reply, dtype=torch.float64), asker)
    return [log[asker] for asker in askers]
