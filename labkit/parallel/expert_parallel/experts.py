"""The experts of one rank: feed-forward networks of two layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Experts(nn.Module):
    """Of `num_experts` feed-forward networks, those with the numbers `own`, which this rank holds.

    All are drawn from torch's generator, one after the other: with one seed on all ranks, each rank has other experts,
    and together they are those of a single process.
    """

    def __init__(self, width: int, hidden: int, num_experts: int, own: range) -> None:
        super().__init__()
        self.own = own
        """Numbers of these experts among all."""
        self.up = nn.Parameter(torch.empty(len(own), width, hidden))
        self.down = nn.Parameter(torch.empty(len(own), hidden, width))
        others = torch.empty(width * hidden)
        with torch.no_grad():
            for number in range(num_experts):
                for weight, inputs in ((self.up, width), (self.down, hidden)):
                    drawn = weight[number - own.start] if number in own else others
                    drawn.uniform_(-(inputs**-0.5), inputs**-0.5)

    def forward(self, number: int, rows: Tensor) -> Tensor:
        """Return (n, width), what this rank's expert `number`, counted from 0, makes of rows (n, width); n may be 0."""
        out: Tensor = F.gelu(rows @ self.up[number]) @ self.down[number]
        return out
