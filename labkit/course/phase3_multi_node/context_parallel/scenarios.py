"""Programs on ranks of context_parallel's checks, and attention in one process, which ranks must equal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.clusters import Run
from labkit.course.flop_work import FlopWork
from labkit.trace import Kind


def attended(
    inputs: Sequence[Tensor],
    gradient: Tensor | None = None,
    causal: bool = True,
    layout: str = "zigzag",
    group: Any = None,
    kind: str = "ring",
    mark: Any = None,
    pair: Any = None,
    flops: float = 1.0,
) -> list[Tensor]:
    """On a rank: attend to q, k and v, with a gradient also backward; return the result and the gradients.

    kind: which attention, "ring", "gather" or "ulysses". mark: called before each pass, and last. pair: called for each
    number of `flops`.
    """
    from labkit.exercises import context_parallel

    attention = getattr(context_parallel, f"{kind}_attention")
    marks = (lambda: None) if mark is None else mark
    with ExitStack() as stack:
        if pair is not None:
            stack.enter_context(FlopWork(pair, flops))
        marks()
        out = attention(*inputs, group, causal, layout)
        marks()
        if gradient is not None:
            out.backward(gradient)
        marks()
    return [out.detach().contiguous(), *(x.grad.contiguous() for x in inputs if x.grad is not None)]


def marks(run: Run, rank: int) -> list[float]:
    """Return when a rank called `mark`, work of this name, in order."""
    return sorted(e.start for e in run.trace.of(rank, Kind.COMPUTE) if e.operation == "mark")


def spans(run: Run, rank: int) -> list[float]:
    """Return the seconds of a rank's forward and backward pass."""
    return [end - begin for begin, end in pairwise(marks(run, rank))]


def parts(x: Tensor, ranks: int, layout: str, dim: int = 2) -> list[Tensor]:
    """Return each rank's part of a sequence."""
    size = x.shape[dim] // (2 * ranks)
    numbers = [(2 * r, 2 * r + 1) if layout == "contiguous" else (r, 2 * ranks - 1 - r) for r in range(ranks)]
    return [torch.cat([x.narrow(dim, n * size, size) for n in pair], dim) for pair in numbers]


def one_process(tensors: Sequence[Tensor], gradient: Tensor | None, causal: bool) -> list[Tensor]:
    """Return the result of attention to whole q, k and v, and, with the result's gradient, theirs; all in float64."""
    q, k, v = inputs = [x.to(torch.float64, copy=True).requires_grad_() for x in tensors]
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    if gradient is not None:
        out.backward(gradient.double())
    return [out.detach(), *(x.grad for x in inputs if x.grad is not None)]
