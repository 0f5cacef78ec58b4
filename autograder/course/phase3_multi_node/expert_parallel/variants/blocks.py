"""Right: choices counted column by column, blocks instead of a second sort, one all-reduce for all gradients alike."""

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
    def __init__(self, width: int, num_experts: int, top_k: int, capacity_factor: float | None = None) -> None:
        super().__init__()
        given.check_router(width, num_experts, top_k, capacity_factor)
        self.width, self.num_experts, self.top_k, self.capacity_factor = width, num_experts, top_k, capacity_factor
        self.gate = nn.Linear(width, num_experts, bias=False)

    def forward(self, x: Tensor) -> given.Routing:
        given.check_tokens(x, self.width)
        dtype = torch.promote_types(x.dtype, torch.float32)
        probabilities = (x.to(dtype) @ self.gate.weight.to(dtype).T).softmax(-1)
        experts = probabilities.argsort(-1, descending=True)[:, : self.top_k]
        weights = probabilities.gather(1, experts)
        room: float = math.inf
        if self.capacity_factor is not None:
            room = math.ceil(self.capacity_factor * experts.numel() / self.num_experts)
        counts = torch.zeros(self.num_experts, dtype=torch.int64, device=x.device)
        columns = []
        for column in experts.unbind(1):
            one_hot = F.one_hot(column, self.num_experts)
            before = counts + one_hot.cumsum(0) - one_hot
            columns.append(before.gather(1, column[:, None])[:, 0] < room)
            counts = counts + one_hot.sum(0)
        loss = x.new_zeros((), dtype=dtype) + 0 * self.gate.weight.sum()
        if len(x):
            loss = self.num_experts * (counts.to(dtype) / experts.numel()) @ probabilities.mean(0)
        return given.Routing(experts, weights, torch.stack(columns, 1), loss, self.num_experts)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, splits: tuple[list[int], list[int]], group: ProcessGroup | None) -> Tensor:
        ctx.splits, ctx.group = splits, group
        send, receive = splits
        result = torch.empty(sum(receive), *x.shape[1:], dtype=x.dtype, device=x.device)
        dist.all_to_all_single(result, x.contiguous(), receive, send, group=group)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        send, receive = ctx.splits
        return apply_in_group(_Exchange, grad, (receive, send), ctx.group), None, None


def dispatch(
    x: Tensor, routing: given.Routing, group: ProcessGroup | None = None
) -> tuple[list[Tensor], given.Journey]:
    ranks = given.check_dispatch(x, routing, group)
    top_k = routing.experts.shape[1]
    wanted = torch.where(routing.kept, routing.experts, -1).flatten()
    each = [(wanted == expert).nonzero()[:, 0] for expert in range(routing.num_experts)]
    counts = torch.tensor([len(choices) for choices in each], device=x.device).view(ranks, -1)
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts, group=group)
    order = torch.cat(each)
    to_send, to_receive = counts.tolist(), received.tolist()
    splits = [sum(sizes) for sizes in to_send], [sum(sizes) for sizes in to_receive]
    rows = apply_in_group(_Exchange, x.index_select(0, order.div(top_k, rounding_mode="floor")), splits, group)
    blocks = rows.split([size for sizes in to_receive for size in sizes])
    numbers = range(len(to_receive[0]))
    batches = [torch.cat(blocks[number :: len(numbers)]) for number in numbers]
    return batches, given.Journey(routing, order, order, to_send, to_receive, group)


def combine(outputs: list[Tensor], journey: given.Journey) -> Tensor:
    given.check_combine(outputs, journey)
    routing = journey.routing
    sizes = zip(*journey.received, strict=True)
    blocks = [rows.split(list(of_expert)) for rows, of_expert in zip(outputs, sizes, strict=True)]
    rows = torch.cat([block for from_rank in zip(*blocks, strict=True) for block in from_rank])
    splits = [sum(sizes) for sizes in journey.received], [sum(sizes) for sizes in journey.sent]
    rows = apply_in_group(_Exchange, rows, splits, journey.group)
    choices = torch.zeros(routing.experts.numel(), rows.shape[1], dtype=routing.weights.dtype, device=rows.device)
    choices = choices.index_copy(0, journey.order, rows.to(choices.dtype))
    choices = choices.view(*routing.experts.shape, rows.shape[1])
    return torch.einsum("tk,tkw->tw", routing.weights, choices).to(rows.dtype)


class ExpertParallelMoE(nn.Module):
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
        given.check_tokens(x, self.router.width)
        tokens = x.flatten(0, -2) if x.dim() > 1 else x[None]
        self.routing = routing = self.router(tokens)
        batches, journey = dispatch(tokens, routing, self.group)
        outputs = [
            F.gelu(rows @ up) @ down for rows, up, down in zip(batches, self.experts.up, self.experts.down, strict=True)
        ]
        return combine(outputs, journey).reshape(x.shape)


def average_gradients(
    module: nn.Module, replicas: ProcessGroup | None = None, group: ProcessGroup | None = None
) -> None:
    given.check_average(module, replicas, group)
    experts = {
        id(parameter)
        for layer in module.modules()
        if isinstance(layer, given.Experts)
        for parameter in layer.parameters()
    }
    gradients: tuple[list[Tensor], list[Tensor]] = [], []
    for parameter in module.parameters():
        if parameter.grad is not None:
            gradients[id(parameter) in experts].append(parameter.grad)
    for number, some in enumerate(gradients):
        if not some:
            continue
        flat = torch.cat([gradient.flatten() for gradient in some]) / dist.get_world_size(group)
        if number == 0 or replicas is not None:
            dist.all_reduce(flat, group=replicas if number else group)
        for gradient, part in zip(some, flat.split([gradient.numel() for gradient in some]), strict=True):
            gradient.copy_(part.view_as(gradient))
