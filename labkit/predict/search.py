"""The best layout of a model on a cluster: all are predicted, and each rejected one has its reason."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from labkit.hardware import Topology
from labkit.predict.constants import FITTED, Constants
from labkit.predict.describe import Description
from labkit.predict.describe.transformer import Transformer
from labkit.predict.plan import Plan
from labkit.predict.prediction import Prediction
from labkit.predict.ranges import OneOf
from labkit.predict.step import predict


@dataclass(frozen=True)
class RejectedLayout:
    """A rejected layout."""

    layout: dict[str, Any]
    why: str
    made: Prediction | None = None
    """Its prediction, if only memory is the reason."""


@dataclass(frozen=True, repr=False)
class Search:
    """All layouts that fit, fastest first, and all that are rejected."""

    found: tuple[Prediction, ...]
    rejected: tuple[RejectedLayout, ...]

    def __repr__(self) -> str:
        best = f", the best: {self.found[0]!r}" if self.found else ""
        return f"Search({len(self.found):,} layouts fit, {len(self.rejected):,} are out{best})"

    def reasons(self) -> list[tuple[str, int]]:
        """Reasons why layouts are rejected, with their counts, most frequent first.

        Reasons that differ only in their numbers count as one, given by the first, or for memory by the layout that
        needs least.
        """
        alike: dict[str, list[RejectedLayout]] = {}
        for rejected in self.rejected:
            alike.setdefault(re.sub(r"\b\d+\b", "#", rejected.why), []).append(rejected)
        groups = sorted(alike.values(), key=len, reverse=True)
        return [(min(group, key=_needed).why, len(group)) for group in groups]

    @property
    def best(self) -> Prediction:
        """The fastest layout. Raises ValueError with the reasons if none fits."""
        if self.found:
            return self.found[0]
        if len({rejected.why for rejected in self.rejected}) == 1:  # the request itself is invalid
            raise ValueError(self.rejected[0].why)
        said = "; ".join(f"{why} ({count} such layouts)" for why, count in self.reasons()[:3])
        raise ValueError(f"no layout fits: {said}")


def _needed(rejected: RejectedLayout) -> float:
    """Bytes needed, or ranks that the batch is divided among: the least is nearest to being possible."""
    return rejected.made.memory.total if rejected.made else rejected.layout.get("data", 1)


def search(model: Description, batch: int, cluster: Topology, *, constants: Constants = FITTED, **fixed: Any) -> Search:
    """Predict every layout of `model` with a batch of `batch` samples on all of `cluster`'s GPUs.

    Tries tensor parallelism inside a node, pipelines with and without interleaving, context parallelism for long
    sequences, ZeRO 0, 1 and 3, microbatches by powers of two (up to 16, or more for short sequences and images), and
    no, selective and full recomputation. `fixed` fields of `Plan` are not varied, except that every choice of a `OneOf`
    is tried: `schedule=OneOf(("1f1b", "zb-h1"))`. A search that takes more than a second shows its progress.
    Raises ValueError for a batch below 1, or if fixed axes do not divide the GPUs.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    varied = {name: choices for name, choices in fixed.items() if isinstance(choices, OneOf)}
    layouts: list[dict[str, Any]] = []
    for chosen in product(*varied.values()):
        one = {**fixed, **dict(zip(varied, chosen, strict=True))}
        _check_axes(one, cluster)
        layouts += _layouts(model, batch, cluster, one)
    found, rejected = [], []
    for layout in _with_progress(layouts, f"layouts of {model.name}"):
        try:
            made = predict(model, Plan(**layout), cluster, constants=constants)
        except ValueError as error:
            rejected.append(RejectedLayout(layout, str(error)))
            continue
        if made.fits:
            found.append(made)
        else:
            needed = (made.memory.total + made.memory.reserved) / 1e9
            held = cluster.gpu.memory_gb
            rejected.append(
                RejectedLayout(
                    layout,
                    f"out of memory: stage {made.memory.stage} needs {needed:.1f} GB of {held:g} (most: "
                    f"{made.memory.largest})",
                    made,
                )
            )
    found.sort(key=lambda made: made.step_seconds)
    return Search(tuple(found), tuple(rejected))


def _with_progress(layouts: Sequence[dict[str, Any]], what: str) -> Iterator[dict[str, Any]]:
    """Yield the same layouts; after a second, show a progress bar on standard error."""
    begun, stop, advance = time.monotonic(), None, None
    try:
        for number, layout in enumerate(layouts):
            if advance is None and time.monotonic() - begun > 1:
                from rich.console import Console
                from rich.progress import Progress

                bar = Progress(console=Console(stderr=True), transient=True)
                task = bar.add_task(what, total=len(layouts))
                bar.start()
                stop, advance = bar.stop, partial(bar.update, task)
            if advance is not None:
                advance(completed=number)
            yield layout
    finally:
        if stop is not None:
            stop()


def _check_axes(fixed: dict[str, Any], cluster: Topology) -> None:
    for axis in ("tensor", "pipeline", "context", "data"):
        if fixed.get(axis, 1) < 1:
            raise ValueError(f"{axis} must be a whole number from 1 up, got {fixed[axis]!r}")
    axes = math.prod(fixed.get(axis, 1) for axis in ("tensor", "pipeline", "context", "data"))
    if cluster.world_size % axes:
        said = "tensor x pipeline x context" + (" x data" if "data" in fixed else "")
        raise ValueError(f"{said} = {axes} must divide {cluster.world_size} GPUs")


def _layouts(model: Description, batch: int, cluster: Topology, fixed: dict[str, Any]) -> Iterator[dict[str, Any]]:
    gpus = cluster.world_size

    def tried(name: str, values: list[Any]) -> list[Any]:
        return [fixed[name]] if name in fixed else values

    tensors = _divisors(cluster.nproc_per_node) if isinstance(model, Transformer) else [1]
    largest = max(16, 32_768 // model.sequence) if isinstance(model, Transformer) else 1024
    contexts = [1, 2, 4, 8] if isinstance(model, Transformer) and model.sequence >= 16_384 else [1]
    for tensor in tried("tensor", tensors):
        for context in tried("context", contexts):
            if gpus % (tensor * context):
                continue
            most = model.layers if isinstance(model, Transformer) else 1
            depths = [depth for depth in _divisors(gpus // (tensor * context)) if depth <= most]
            for pipeline in tried("pipeline", depths):
                if gpus % (tensor * context * pipeline):
                    continue
                data = gpus // (tensor * context * pipeline)
                if fixed.get("data", data) != data:
                    continue
                if batch % data:
                    yield dict(fixed, batch=batch, tensor=tensor, context=context, pipeline=pipeline, data=data)
                    continue
                for microbatch in tried("microbatch", _powers(min(batch // data, largest))):
                    for zero in tried("zero", [0] if data * context == 1 else [0, 1, 3] if pipeline == 1 else [0, 1]):
                        for recompute in tried("recompute", ["none", "selective", "full"]):
                            for chunks in tried("chunks", _chunks(model, pipeline, fixed.get("schedule"))):
                                yield {
                                    **fixed, "batch": batch, "tensor": tensor, "context": context, "data": data,
                                    "pipeline": pipeline, "microbatch": microbatch, "zero": zero, "chunks": chunks,
                                    "recompute": recompute,
                                    "sequence_parallel": fixed.get("sequence_parallel", tensor > 1),
                                    "schedule": fixed.get("schedule", "interleaved" if chunks > 1 else "1f1b"),
                                }  # fmt: skip


def _chunks(model: Description, pipeline: int, schedule: str | None) -> list[int]:
    if not isinstance(model, Transformer) or pipeline == 1 or model.layers % pipeline:
        return [1]
    if schedule not in (None, "interleaved"):
        return [1]
    return [chunks for chunks in _divisors(model.layers // pipeline) if chunks <= 8]


def _divisors(number: int) -> list[int]:
    return [value for value in range(1, number + 1) if number % value == 0]


def _powers(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]
