"""A mixture of experts in one process that has all of them: what expert parallelism must equal."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def dense_moe(
    x: Tensor, gate: Tensor, up: Tensor, down: Tensor, top_k: int, capacity_factor: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result (tokens, width), the load-balancing loss, and the kept choices (tokens, top_k).

    x: (tokens, width); gate: (experts, width); up: (experts, width, hidden); down: (experts, hidden, width). Every
    expert computes every token, and all but the kept choices get the weight 0.
    """
    count, tokens = len(gate), len(x)
    probabilities = (x @ gate.T).softmax(-1)
    experts = probabilities.topk(top_k).indices
    chosen = F.one_hot(experts.T, count)
    capacity = math.inf if capacity_factor is None else math.ceil(capacity_factor * tokens * top_k / count)
    kept = chosen * (chosen.flatten(0, 1).cumsum(0).view_as(chosen) <= capacity)
    outputs = torch.stack([F.gelu(x @ up[number]) @ down[number] for number in range(count)], 1)
    result = (kept.sum(0) * probabilities).unsqueeze(1) @ outputs
    shares = chosen.sum((0, 1)).to(x.dtype) / max(tokens * top_k, 1)
    loss = count * (shares * probabilities.sum(0)).sum() / max(tokens, 1)
    return result.squeeze(1), loss, kept.sum(2).T.bool()
