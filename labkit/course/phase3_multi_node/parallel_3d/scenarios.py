"""Programs on ranks of parallel_3d's checks: a training on a mesh, and the same one in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit.course.flop_work import FlopWork
from labkit.course.phase3_multi_node.parallel_3d.given import whole_layer
from labkit.models.gpt import GPTConfig
from labkit.models.gpt_layers import gpt_layers, share


def trained(
    dims: Sequence[int],
    sizes: dict[str, Any],
    batches: list[Any],
    microbatches: int,
    seed: int,
    make_optimizer: Callable[..., Any],
    mark: Any = None,
    unit: Any = None,
    flops: float = 1.0,
    **options: Any,
) -> dict[str, Any]:
    """On a rank: train with its part of each batch; return losses, stages, and whole parameters of the rank's layers.

    mark: called before and after each step. unit: called for each number of `flops`. options: of the trainer. A check
    sends the source of this function, with another one that calls it: it imports what it needs.
    """
    from labkit.exercises import parallel_3d

    trainer = parallel_3d.Parallel3DTrainer(
        GPTConfig(**sizes), parallel_3d.build_mesh(*dims), make_optimizer, microbatches, seed=seed, **options
    )
    shapes = [[[list(p.shape) for p in layer.parameters()] for layer in layers] for layers in trainer.layers]
    losses = []
    with contextlib.nullcontext() if unit is None else FlopWork(unit, flops):
        for tokens, targets in batches:
            if mark is not None:
                mark()
            losses.append(trainer.train_step(tokens, targets))
        if mark is not None:
            mark()
    whole = [[] if not batches else [whole_layer(layer) for layer in layers] for layers in trainer.layers]
    values = [[[p.detach().clone() for p in layer.parameters()] for layer in layers] for layers in whole]
    return {"losses": losses, "stages": [s.index for s in trainer.stages], "shapes": shapes, "values": values}


def one_process(
    sizes: dict[str, Any],
    batches: Sequence[Tensor],
    seed: int,
    momentum: float = 0.0,
    wrap: Callable[[nn.Module], nn.Module] = lambda block: block,
) -> tuple[list[float], list[list[Tensor]]]:
    """Train by SGD with whole batches in one process; return losses, and each layer's parameters afterwards."""
    layers = [plan.make() for plan in gpt_layers(GPTConfig(**sizes), seed)]
    share(layers)
    first, *blocks, last = layers
    model = nn.Sequential(first, *map(wrap, blocks), last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=momentum)
    losses = []
    for tokens in batches:
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [[p.detach() for p in layer.parameters()] for layer in layers]


def place(rank: int, dims: Sequence[int]) -> tuple[int, int, int]:
    """Return a rank's coordinates dp, pp and tp."""
    dp, _, tp = dims
    return rank // tp % dp, rank // (tp * dp), rank % tp


def line(rank: int, axis: int, dims: Sequence[int]) -> list[int]:
    """Return the ranks that differ from `rank` on this axis only: 0, dp; 1, pp; 2, tp."""
    own, others = place(rank, dims), [number for number in range(3) if number != axis]
    return [r for r in range(dims[0] * dims[1] * dims[2]) if all(place(r, dims)[n] == own[n] for n in others)]


def pairs_of(rank: int, dims: Sequence[int], batches: Sequence[Tensor]) -> list[tuple[Tensor | None, Tensor | None]]:
    """Return a rank's part of each batch: tokens on the first stage, targets on the last."""
    data, stage, _ = place(rank, dims)
    parts, last = [tokens.chunk(dims[0])[data] for tokens in batches], stage == dims[1] - 1
    return [(t[:, :-1].clone() if stage == 0 else None, t[:, 1:].clone() if last else None) for t in parts]
