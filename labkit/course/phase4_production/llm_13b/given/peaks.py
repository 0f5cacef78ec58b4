"""Peaks of memory of the parts of a training step, each of which grows by the same bytes with each block of a stage.

The peak of a whole step does not: with few blocks the head's logits decide, with many the activations of all blocks. So
the passes of each microbatch through the ends of a stage have peaks of their own, and so has the optimizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from labkit.clusters.device import max_memory_allocated, reset_peak_memory_stats
from labkit.models.gpt_layers import Embedding, Head


class PeaksOfStep:
    """Peaks of a trainer of exercise 17 on this rank: `begin()`, a step, `end()`. It leaves hooks in the trainer.

    A pass through a layer lasts until the next one begins, so what is sent in between belongs to it.
    """

    def __init__(self, trainer: Any) -> None:
        self._peaks: dict[str, int] = {}
        self._under_way: tuple[str, ...] = ()
        """Names of the part that runs."""
        self._passes: Counter[str] = Counter()
        for stage, layers in enumerate(trainer.layers):
            for layer, places in zip(layers, _places(layers), strict=True):
                names = [f"{stage} {place}" for place in places]
                layer.register_forward_pre_hook(partial(self._forward, names))
                layer.register_forward_hook(partial(self._output, names))
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # a `ZeroOptimizer` has one for shards
        optimizer.register_step_pre_hook(lambda *_: self._now("update"))
        optimizer.register_step_post_hook(lambda *_: self._now("after the update"))

    def begin(self) -> None:
        """Begin a step."""
        self._peaks.clear()
        self._passes.clear()
        self._under_way = ()
        self._now("begin")

    def end(self) -> dict[str, int]:
        """Return the peak of each part of the step, in bytes, by its name."""
        self._now()
        return dict(self._peaks)

    def _now(self, *names: str) -> None:
        """End the part that runs, and begin the one with these names."""
        for name in self._under_way:
            self._peaks[name] = max(self._peaks.get(name, 0), max_memory_allocated())
        self._under_way = names
        reset_peak_memory_stats()

    def _forward(self, names: Sequence[str], *_: Any) -> None:
        self._pass("forward", names)

    def _output(self, names: Sequence[str], module: Any, inputs: Any, output: Any) -> None:
        if output.requires_grad:
            output.register_hook(lambda _: self._pass("backward", names))
        self._now(*[f"{name}, left" for name in self._under_way])

    def _pass(self, direction: str, names: Sequence[str]) -> None:
        parts = []
        for name in names:
            self._passes[key := f"{direction} {name}"] += 1
            parts.append(f"{key} {self._passes[key]}")
        self._now(*parts)


def blocks_of(trainer: Any) -> int:
    """Return the number of blocks in this rank's stages."""
    return sum(not isinstance(layer, (Embedding, Head)) for layers in trainer.layers for layer in layers)


def _places(layers: Sequence[Any]) -> list[list[str]]:
    """Return the names of each layer's place in its stage: the first and the last block, which may be the same, and
    the ends. Blocks between them have none: each takes more than one of its neighbours does, and less than the other.
    """
    blocks = [place for place, layer in enumerate(layers) if not isinstance(layer, (Embedding, Head))]
    names: list[list[str]] = [[] for _ in layers]
    for place, layer in enumerate(layers):
        if isinstance(layer, (Embedding, Head)):
            names[place].append(type(layer).__name__.lower())
    if blocks:
        names[blocks[0]].append("first block")
        names[blocks[-1]].append("last block")
    return names
