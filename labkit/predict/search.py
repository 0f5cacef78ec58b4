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

AXES = ("tensor", "pipeline", "context", "data")
"""Fields of a plan whose product is the number of GPUs."""
SECOND_LOOKS = 40
"""Number of layouts without enough memory that are tried again with less."""


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
        reasons = "; ".join(f"{why} ({count} such layouts)" for why, count in self.reasons()[:3])
        raise ValueError(f"no layout fits: {reasons}")

    @property
    def safest(self) -> Prediction:
        """The layout that is fastest at the upper end of its range, for software whose steps may be far from their
        prediction. Raises ValueError with the reasons if none fits."""
        return min(self.found or (self.best,), key=lambda made: made.step_range.high)


def _needed(rejected: RejectedLayout) -> float:
    """Bytes needed, or ranks that the batch is divided among: the least is nearest to being possible."""
    return rejected.made.memory.total if rejected.made else rejected.layout.get("data", 1)


def search(model: Description, batch: int, cluster: Topology, *, constants: Constants = FITTED, **fixed: Any) -> Search:
    """Predict every layout of `model` with a batch of `batch` samples on all of `cluster`'s GPUs.

    Tries tensor parallelism inside a node, pipelines with and without interleaving, context parallelism for long
    sequences, ZeRO 0, 1 and 3, microbatches by powers of two (up to 16, or more for short sequences and images), and
    no, selective and full recomputation. A layout is found if it fits at the upper end of the memory that torch's
    allocator may keep; the fastest of those that do not are tried again with a part of their layers recomputed, and
    with ZeRO 2. `fixed` fields of `Plan` are not varied, except that every choice of a `OneOf`
    is tried: `schedule=OneOf(("1f1b", "zb-h1"))`. A search that takes more than a second shows its progress.
    Raises ValueError for a batch below 1, or if fixed axes do not divide the GPUs or leave no layout.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    varied = {name: choices for name, choices in fixed.items() if isinstance(choices, OneOf)}
    layouts: list[dict[str, Any]] = []
    for chosen in product(*varied.values()):
        combination = {**fixed, **dict(zip(varied, chosen, strict=True))}
        _check_axes(combination, cluster)
        layouts += _layouts(model, batch, cluster, combination)
    if not layouts:
        given = ", ".join(f"{axis} {fixed[axis]}" for axis in AXES if axis in fixed)
        raise ValueError(f"no layout of {model.name} on {cluster.world_size} GPUs has {given}: leave one of them out")
    fitting: list[Prediction] = []
    rejected: list[RejectedLayout] = []

    def attempt(layout: dict[str, Any]) -> None:
        try:
            made = predict(model, Plan(**layout), cluster, constants=constants)
        except ValueError as error:
            rejected.append(RejectedLayout(layout, str(error)))
            return
        if made.surely_fits:
            fitting.append(made)
        else:
            rejected.append(RejectedLayout(layout, _shortage(made), made))

    for layout in _with_progress(layouts, f"layouts of {model.name}"):
        attempt(layout)
    for layout in _thriftier(rejected, fixed):
        attempt(layout)
    fitting.sort(key=lambda made: made.step_seconds)
    return Search(tuple(fitting), tuple(rejected))


def _shortage(made: Prediction) -> str:
    """Return why a layout is not safe: its memory, at the upper end of what torch's allocator may keep."""
    least, most = made.device_bytes.low / 1e9, made.device_bytes.high / 1e9
    needs = f"needs {least:.1f} GB" if not made.fits else f"may need up to {most:.1f} GB"
    of = f"{made.memory_gb:g} (most: {made.memory.largest})"
    return f"out of memory: stage {made.memory.stage} {needs} of {of}"


def _thriftier(rejected: Sequence[RejectedLayout], fixed: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the fastest layouts that only lack memory, with part of their layers recomputed or gradients sharded."""
    short = sorted(
        ((candidate.made, candidate.layout) for candidate in rejected if candidate.made),
        key=lambda pair: pair[0].step_seconds,
    )
    for made, layout in short[:SECOND_LOOKS]:
        changes: list[dict[str, Any]] = []
        if made.plan.recompute == "none" and isinstance(made.model, Transformer) and "recompute" not in fixed:
            changes += [{"recompute": "full", "recomputed_layers": share} for share in (0.25, 0.5, 0.75)]
        if made.plan.pipeline > 1 and made.plan.zero == 1 and "zero" not in fixed:
            changes += [{"zero": 2, **change} for change in ({}, *changes)]
        for change in changes:
            if "recomputed_layers" not in fixed:
                yield {**layout, **change}


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
    for axis in AXES:
        if fixed.get(axis, 1) < 1:
            raise ValueError(f"{axis} must be a whole number from 1 up, got {fixed[axis]!r}")
    axes = math.prod(fixed.get(axis, 1) for axis in AXES)
    if cluster.world_size % axes:
        factors = "tensor x pipeline x context" + (" x data" if "data" in fixed else "")
        raise ValueError(f"{factors} = {axes} must divide {cluster.world_size} GPUs")


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
                for zero, microbatch, recompute, (balance, chunks) in product(
                    tried("zero", [0] if data * context == 1 else [0, 1, 3] if pipeline == 1 else [0, 1]),
                    tried("microbatch", _powers(min(batch // data, largest))),
                    tried("recompute", ["none", "selective", "full"]),
                    _stages(model, pipeline, cluster, fixed),
                ):
                    yield {
                        **fixed, "batch": batch, "tensor": tensor, "context": context, "data": data,
                        "pipeline": pipeline, "microbatch": microbatch, "zero": zero, "chunks": chunks,
                        "recompute": recompute, "balance": balance,
                        "sequence_parallel": fixed.get("sequence_parallel", tensor > 1),
                        "schedule": fixed.get("schedule", "interleaved" if chunks > 1 else "1f1b"),
                    }  # fmt: skip


def _stages(model: Description, pipeline: int, cluster: Topology, fixed: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield ways to cut the layers into stages: a balance, and a number of chunks per rank.

    If they do not divide evenly, one layer fewer at both ends may (Llama 3 405B: 126 layers in 16 stages).
    """
    if not isinstance(model, Transformer) or pipeline == 1:
        yield fixed.get("balance", "layers"), fixed.get("chunks", 1)
        return
    uneven = model.layers % pipeline and (model.layers + 2) % pipeline == 0
    balances = ["ends"] if uneven else ["layers"]
    if len(cluster.kinds) > 1:  # slower GPUs may have fewer layers
        balances = [*balances, "cost"]
    for balance in [fixed["balance"]] if "balance" in fixed else balances:
        places = model.layers + (2 if balance == "ends" else 0)
        for chunks in [fixed["chunks"]] if "chunks" in fixed else _chunks(places, pipeline, fixed.get("schedule")):
            yield balance, chunks


def _chunks(places: int, pipeline: int, schedule: str | None) -> list[int]:
    if schedule not in (None, "interleaved"):
        return [1]
    if places % pipeline:
        return [chunks for chunks in (1, 2, 4, 8) if pipeline * chunks <= places]
    return [chunks for chunks in _divisors(places // pipeline) if chunks <= 8]


def _divisors(number: int) -> list[int]:
    return [value for value in range(1, number + 1) if number % value == 0]


def _powers(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]
