"""Expert parallelism: a layer of many experts, spread over the ranks, of which each token uses a few.

A router chooses each token's experts (Shazeer et al. 2017). All ranks have tokens of their own and experts of their
own, so tokens travel: one all-to-all takes them to their experts, another one brings the results back (GShard, Lepikhin
et al. 2021). A load-balancing loss keeps the experts equally busy (Switch Transformer, Fedus et al. 2022).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from labkit.course.phase2_advanced.tensor_parallel.given.parts import apply_in_group
from labkit.course.phase3_multi_node.expert_parallel import given

__all__ = ["ExpertParallelMoE", "TopKRouter", "average_gradients", "combine", "dispatch"]


class TopKRouter(nn.Module):
    """Choose `top_k` of `num_experts` experts for each token. The weights of `gate` are the same on all ranks."""

    def __init__(self, width: int, num_experts: int, top_k: int, capacity_factor: float | None = None) -> None:
        super().__init__()
        given.check_router(width, num_experts, top_k, capacity_factor)
        self.width, self.num_experts, self.top_k, self.capacity_factor = width, num_experts, top_k, capacity_factor
        self.gate = nn.Linear(width, num_experts, bias=False)

    def forward(self, x: Tensor) -> given.Routing:
        """Route this rank's tokens x (tokens, width), of which there may be none. Sends nothing.

        experts, weights: the top_k most probable experts, in this order, and their probabilities: a softmax over all
        experts, computed in float32 or more. kept: an expert has room for capacity_factor * (choices / num_experts) of
        this rank's choices, rounded up. All first choices come before all second ones, each in the order of the tokens;
        what exceeds the room is dropped. With None nothing is. loss: num_experts * sum over the experts of (share of
        the choices, before drops) * (mean probability): 1 if both are equal for all; 0 without tokens.
        """
        given.check_tokens(x, self.width)
        dtype = torch.promote_types(x.dtype, torch.float32)
        probabilities = F.linear(x.to(dtype), self.gate.weight.to(dtype)).softmax(-1)
        # TODO 1. `chosen` (choices, num_experts) says which choice is which expert, first choices first. Its sum gives
        # shares, and its cumulative sum the place of each choice in the queue of its expert.
        # YOUR CODE HERE
        raise NotImplementedError()
        return given.Routing(experts, weights, kept, loss, self.num_experts)


class _Exchange(torch.autograd.Function):
    """Send rows of x (rows, width): the first `send[0]` to rank 0, the next `send[1]` to rank 1, and so on.

    Returns `receive[0]` rows from rank 0, `receive[1]` from rank 1, and so on. One all-to-all, and one backward.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, send: list[int], receive: list[int], group: ProcessGroup | None) -> Tensor:
        # TODO 2. `dist.all_to_all_single(output, input, output_sizes, input_sizes, group)`; gradients go the way back.
        # YOUR CODE HERE
        raise NotImplementedError()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        # YOUR CODE HERE
        raise NotImplementedError()


def dispatch(
    x: Tensor, routing: given.Routing, group: ProcessGroup | None = None
) -> tuple[list[Tensor], given.Journey]:
    """Send this rank's tokens x (tokens, width) to their experts, a row for each kept choice, and for no other.

    Rank r of N has the r-th num_experts / N experts. Returns a batch (rows, width) for each expert of this rank, with
    rows in the order of the ranks that they come from, and of each rank's tokens; and what `combine` needs.
    An all-to-all of counts, and one of rows, as many as there are. Raises ValueError before any communication.
    """
    ranks = given.check_dispatch(x, routing, group)
    counts = routing.counts.view(ranks, -1)
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts, group=group)
    to_send = counts.tolist()
    to_receive = received.tolist()
    # Sort the choices by expert, with dropped ones at the end: `argsort(stable=True)`. Choice c is one of token
    # c // top_k. Rows arrive sorted by rank, and those of a rank by expert: sort them by expert alone.
    # YOUR CODE HERE
    raise NotImplementedError()
    return batches, given.Journey(routing, order, arrival, to_send, to_receive, group)


def combine(outputs: list[Tensor], journey: given.Journey) -> Tensor:
    """Send rows back to where `dispatch` has got them from, and add up each token's, times their weights.

    outputs: (rows, width) for each batch of `dispatch`. Returns (tokens, width) in their dtype; 0 for a token whose
    choices are all dropped. One all-to-all of rows, as many as came.
    """
    given.check_combine(outputs, journey)
    routing, order = journey.routing, journey.order
    # TODO 3. Undo the second sort: if `sorted = rows[order]`, then `rows` is `sorted[order.argsort()]`. Send the rows
    # back; they come in the order of the choices that were sent. Then `torch.zeros(...).index_add(0, tokens, rows)`.
    # YOUR CODE HERE
    raise NotImplementedError()


class ExpertParallelMoE(nn.Module):
    """Experts of which each token uses `top_k`; each rank of the group holds as many, in order.

    Build it with one seed on all ranks: the router is the same everywhere, and the experts are those of one process.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        num_experts: int,
        top_k: int,
        group: ProcessGroup | None = None,
        capacity_factor: float | None = None,
    ) -> None:
        super().__init__()
        self.router = TopKRouter(width, num_experts, top_k, capacity_factor)
        self.experts = given.Experts(width, hidden, num_experts, given.check_layer(hidden, num_experts, group))
        self.group = group
        self.routing: given.Routing | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., width) for this rank's tokens x (..., width); ranks may have different numbers, also none.

        `routing` is that of the last call: its `loss` is for the caller to add. Every rank takes part in all exchanges,
        also backward, so every expert computes, even if no row comes. x needs a gradient on all ranks, or on none.
        """
        given.check_tokens(x, self.router.width)
        # YOUR CODE HERE
        raise NotImplementedError()


def average_gradients(
    module: nn.Module, replicas: ProcessGroup | None = None, group: ProcessGroup | None = None
) -> None:
    """Make the gradients of each rank's loss those of the mean loss over all ranks of `group`, in place.

    replicas: the ranks with the same experts as this one, where several groups of experts work side by side; None if
    there is one. Experts, the parameters of `given.Experts`, have gradients from the losses of all ranks that sent them
    tokens, already added up by the backward pass; they are never sent to ranks with other experts. All other parameters
    are the same everywhere, and have the gradients of this rank's loss.
    """
    given.check_average(module, replicas, group)
    # TODO 4. A mean over all ranks is a sum over the ranks that have a part of it, divided by what?
    # YOUR CODE HERE
    raise NotImplementedError()
