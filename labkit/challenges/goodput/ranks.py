"""Programs of the two ranks of the goodput challenge: the storm on rank 0, a policy on rank 1.

States and decisions travel as tensors: JSON's bytes one way, two numbers the other way. Rank 0 loads nothing of rank 1.
"""

from __future__ import annotations

import json

import torch
import torch.distributed as dist

from labkit import exercises
from labkit.challenges.goodput.storm import Decision, State, Storm, play

_NAMES = ("train", "save", "exclude", "include")
"""Actions, in the order of their numbers."""


def play_on_ranks(seed: int | None, module: str) -> list[list[int]] | None:
    """Play a storm; on rank 0 return the decisions. seed: None on rank 1, which need not know it."""
    if seed is None:
        _decide(module)
        return None
    decisions = [list(decision) for decision in play(Storm(seed), _ask)]
    dist.send(torch.zeros(1, dtype=torch.int64), 1)
    return decisions


def _ask(state: State) -> Decision:
    text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    dist.send(torch.tensor([text.numel()]), 1)
    dist.send(text, 1)
    answer = torch.zeros(2, dtype=torch.int64)
    dist.recv(answer, 1)
    return Decision(*answer.tolist())


def _decide(module: str) -> None:
    policy = getattr(exercises, module).Policy()
    size = torch.zeros(1, dtype=torch.int64)
    while True:
        dist.recv(size, 0)
        if not int(size):
            return
        text = torch.zeros(int(size), dtype=torch.uint8)
        dist.recv(text, 0)
        dist.send(torch.tensor(_checked(policy.decide(json.loads(bytes(text.tolist()))))), 0)


def _checked(decision: object) -> list[int]:
    match decision:
        case (str() as name, int() as number) if name in _NAMES and -(2**63) <= number < 2**63:
            return [_NAMES.index(name), number]
    names = ", ".join(_NAMES)
    raise ValueError(f"decide must return (name, number), with a name of {names}; got {decision!r}")
