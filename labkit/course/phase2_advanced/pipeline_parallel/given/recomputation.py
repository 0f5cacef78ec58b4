"""A stage's forward pass of one microbatch that can run again."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from labkit.course.phase2_advanced.activation_checkpointing.given.recomputation import (
    SavedAutocast,
    devices_of,
    random_states,
)


class ForwardPass:
    """A forward pass that is about to run, with the random numbers and the autocast of this moment.

    inputs: a leaf, whose gradient the backward pass computes. run: computes the output from it.
    """

    def __init__(self, inputs: Tensor, run: Callable[[], Tensor]) -> None:
        self.inputs, self.run = inputs, run
        self.devices = devices_of([inputs])
        """The CPU, and the GPU of the inputs: random numbers may come from either."""
        self.random_states = random_states(self.devices)
        """States of their generators, as `set_random_states` takes them."""
        self.autocast = SavedAutocast(self.devices)
        """A context in which autocast is as it is now."""
