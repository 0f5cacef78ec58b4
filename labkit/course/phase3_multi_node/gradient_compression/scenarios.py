"""Programs on ranks of gradient_compression's checks: a compressor by itself, and means over ranks by one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

Spec = tuple[str, dict[str, Any]]
"""A compressor's name and arguments."""


def compressed(spec: Spec, names: list[str], gradients: list[Tensor], state: Any = None) -> dict[str, Any]:
    """On a rank: compress one gradient after the other, going on from `state` if there is one.

    Returns messages, what they mean, residuals, each None if there is none, and the state at the end.
    """
    from labkit.exercises import gradient_compression

    compressor = getattr(gradient_compression, spec[0])(**spec[1])
    if state is not None:
        compressor.load_state_dict(state)
    found: dict[str, Any] = {"meant": [], "messages": [], "residuals": []}
    for name, gradient in zip(names, gradients, strict=True):
        message = compressor.compress(gradient, name)
        found["messages"].append([part.contiguous() for part in message])
        found["meant"].append(compressor.decompress(message, gradient.shape, name).clone())
        rest = compressor.state[name].get("residual")
        found["residuals"].append(None if rest is None else rest.clone())
    return {**found, "state": compressor.state_dict()}


def reduced(
    spec: Spec,
    steps: list[list[Tensor]],
    orders: list[list[int]] | None = None,
    bucket_size_mb: float = 25.0,
    overlap: bool = True,
    backward: Any = None,
    group: Any = None,
    intra: Any = None,
    inter: Any = None,
) -> list[list[Tensor]]:
    """On a rank: replace the gradients of each step by their means; `backward` is called before each is taken."""
    from labkit.exercises import gradient_compression

    compressor = getattr(gradient_compression, spec[0])(**spec[1])
    optimizer = gradient_compression.CommunicationOptimizer(compressor, bucket_size_mb, overlap)

    def pairs(gradients: list[Tensor], order: list[int]) -> Any:
        for number in order:
            if backward is not None:
                backward()
            yield f"layer{number}.weight", gradients[number]

    for number, gradients in enumerate(steps):
        order = orders[number] if orders else list(range(len(gradients)))
        if intra is None:
            optimizer.all_reduce_compressed(pairs(gradients, order), group)
        else:
            optimizer.hierarchical_all_reduce(pairs(gradients, order), intra, inter)
    return steps
