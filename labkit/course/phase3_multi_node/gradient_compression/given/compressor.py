"""Base of the compressors: their methods, and a state for each parameter, saved and restored."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from torch import Size, Tensor

from labkit.course.phase3_multi_node.gradient_compression.given.arguments import require_fields

Message = tuple[Tensor, ...]
"""Tensors that a rank sends for one gradient."""

Rounds = Generator[Message, list[Message], list[Message]]
"""Generator that yields the message of each round. The values sent into it, and its return value, are messages to be
averaged: one from each rank, or a single one that is their mean."""


@dataclass(eq=False)
class Compressor:
    """Base of the compressors: `state[name]` is a dictionary with what a compressor keeps for that parameter.

    A subclass is a dataclass: its fields are its arguments. Raises ValueError for one that cannot be used.
    """

    state: defaultdict[str, dict[str, Any]] = field(
        default_factory=lambda: defaultdict(dict), init=False, repr=False, kw_only=True
    )
    summable: ClassVar[bool] = False
    """Whether the sum of several ranks' messages is the message of the summed gradients."""

    def __post_init__(self) -> None:
        require_fields({argument.name: getattr(self, argument.name) for argument in fields(self) if argument.init})

    def encode(self, tensor: Tensor, name: str) -> Message:
        """Return the message for `tensor`, which may have any shape, be empty or a scalar."""
        raise NotImplementedError

    def compress(self, gradient: Tensor, name: str) -> Message:
        """Return the message of the last round as if this rank were the only one."""
        return alone(self.rounds(gradient, name))

    def decompress(self, message: Message, shape: Size, name: str) -> Tensor:
        """Return the tensor that `message` encodes, in `shape`."""
        raise NotImplementedError

    def rounds(self, gradient: Tensor, name: str) -> Rounds:
        """Make one round, whose message is `compress(gradient, name)`."""
        return (yield self.compress(gradient, name))

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state of all parameters: plain data and tensors, for `torch.save`."""
        return {"compressor": repr(self), "state": copy.deepcopy(dict(self.state))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace the state by a copy of that in `state_dict`.

        Raises ValueError if it is that of another compressor, or of one with other arguments.
        """
        saved = state_dict.get("compressor")
        if saved != repr(self):
            raise ValueError(f"state_dict must be that of {self!r}, got one of {saved}")
        self.state = defaultdict(dict, copy.deepcopy(state_dict["state"]))


def alone(rounds: Rounds) -> Message:
    """Run `rounds` as the only rank: each answer is the message that was sent. Return the final message."""
    message = next(rounds)
    while True:
        try:
            message = rounds.send([message])
        except StopIteration as finished:
            only: list[Message] = finished.value
            return only[0]
