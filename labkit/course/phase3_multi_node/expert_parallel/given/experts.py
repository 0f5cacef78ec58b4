"""The experts of one rank: feed-forward networks of two layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Experts(nn.Module):
    """The feed-forward networks that this rank holds: those with the numbers `own` among `num_experts`.

    All weights are drawn from torch's generator, one after the other: with one seed on all ranks, each rank has other
    experts, and together they are those of a single process.
    """

    def __init__(self, width: int, hidden: int, num_experts: int, own: range) -> None:
        super().__init__()
        self.own = own
        """Numbers of these experts among all."""
        self.up = nn.Parameter(torch.empty(len(own), width, hidden))
        self.down = nn.Parameter(torch.empty(len(own), hidden, width))
        drawn = torch.empty(2, width * hidden)
        with torch.no_grad():
            for number in range(num_experts):
                drawn.uniform_(-1, 1)
                if number in own:
                    self.up[number - own.start] = drawn[0].view(width, hidden) * width**-0.5
                    self.down[number - own.start] = drawn[1].view(hidden, width) * hidden**-0.5

    def forward(self, batches: Sequence[Tensor]) -> list[Tensor]:
        """Return each expert's outputs for its batch (rows, width), which may be empty, in the same shape."""
        weights = zip(self.up.unbind(), self.down.unbind(), strict=True)
        return [F.gelu(rows @ up) @ down for rows, (up, down) in zip(batches, weights, strict=True)]
