"""A rank's memory, term by term, and changes that make a plan fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from labkit.hardware import Topology
from labkit.predict.costs.compressing import COMPRESSORS
from labkit.predict.costs.memory import FRAGMENTATION, Memory, layer_bytes, logit_bytes, memory
from labkit.predict.costs.placing import memory_gb, stage_gpus
from labkit.predict.costs.schedules import in_flight, weights_waiting
from labkit.predict.costs.state_bytes import state_bytes
from labkit.predict.describe import Description
from labkit.predict.describe.transformer import Transformer
from labkit.predict.plan import Plan


class MemoryTerm(NamedTuple):
    """One term of a rank's memory."""

    name: str
    nbytes: float
    formula: str
    source: str


class Relief(NamedTuple):
    """A change of the plan, and the peak memory of the fullest rank after it."""

    change: str
    plan: Plan
    nbytes: float
    fits: bool


ZERO = "Rajbhandari et al. 2020, section 3"
KORTHIKANTI = "Korthikanti et al. 2022, section 4"
COUNTED = "counted, operation by operation"
FSDP = "Zhao et al. 2023, section 3"


def held(model: Description, plan: Plan, stage: Memory) -> list[MemoryTerm]:
    """The nonzero terms of `stage`, largest first; their sum is `stage.total`."""
    count, n = f"{stage.parameter_count:.4g} parameters", plan.sharded_over
    each = state_bytes(plan)
    copied = " and an fp32 copy" if each.optimizer > 8 else ""
    shards = f" / {n} ranks" if n > 1 else ""
    scattered = {0: "", 1: "", 2: shards, 3: shards}[plan.zero]
    gradient = f"{each.gradients} bytes"
    if plan.gradient_copies and plan.shared_by > 1 and plan.zero < 2:
        gradient = f"({gradient[0]} + {plan.value_bytes} in DDP's buckets) bytes"
    if plan.compression in COMPRESSORS and COMPRESSORS[plan.compression].residual:
        gradient += f", and as residual {plan.gradient_bytes} bytes"
    formulas = {
        "parameters": (f"{count} x {each.parameters} bytes{shards if plan.zero == 3 else ''}", ZERO),
        "gradients": (f"{count} x {gradient}{scattered}", ZERO),
        "optimizer": (f"{count} x {each.optimizer} bytes{shards}: Adam{copied}", ZERO),
        "kept": ("outputs of all layers of a microbatch", COUNTED),
        "working": ("gradients of one layer's activations, at the widest, less what is freed by then", COUNTED),
        "gathered": (
            "parameters of two layers, embedding and head, from all shards, x "
            + (f"{plan.value_bytes} bytes" if not plan.fp8_transfers else "1 byte in layers, 2 in the rest"),
            FSDP,
        ),
        "passing": ("gradients as autograd makes them, before they are summed up or scattered", FSDP),
        "update": (f"{count} x 4 bytes{shards}: an fp32 copy of what is updated", "torch.optim.Adam(foreach=True)"),
    }  # fmt: skip
    if isinstance(model, Transformer):
        formulas |= _activations(model, plan, stage)
    terms = [MemoryTerm(name, getattr(stage, name), *formulas[name]) for name in formulas if getattr(stage, name)]
    return sorted(terms, key=lambda term: -term.nbytes)


def _activations(model: Transformer, plan: Plan, stage: Memory) -> dict[str, tuple[str, str]]:
    """Formula and source of each memory term of a transformer's layers and loss."""
    one, thrifty, whole, _ = layer_bytes(model, plan)
    flying = in_flight(plan, stage.stage) - (stage.moment == "end of backward")
    rest = stage.kept - stage.layers * flying * one
    beside = f", and {rest / 1e6:.4g} MB of the embedding and the head" if rest > 0 else ""
    if waiting := weights_waiting(plan, stage.stage):
        beside = f", and {rest / 1e6:.4g} MB that the weights of {waiting:g} microbatches wait for"
    logits = model.logits(plan.microbatch, tensor=plan.tensor, context=plan.context)
    return {
        "kept": (
            f"{stage.layers} layers x {flying:g} microbatches in flight x {one / 1e6:.4g} MB, recompute "
            f"{plan.recompute}{beside}",
            KORTHIKANTI,
        ),
        "again": (f"one layer's {whole / 1e6:.4g} MB, of which {thrifty / 1e6:.4g} had been kept", "Chen et al. 2016"),
        "logits": (f"{logits:.4g} logits x {logit_bytes(plan)[0]} bytes, loss {plan.loss}", COUNTED),
    }


def lines(model: Description, plan: Plan, cluster: Topology, stages: Sequence[Memory]) -> list[str]:
    """Lines for `Prediction.explain`: the fullest stage, its terms, its measures, and what would make it fit."""
    most = fullest(plan, cluster, stages)
    text = [f"memory at stage {most.stage} of {len(stages)}, at its peak: {most.moment}"]
    text += [
        f"  {term.nbytes / 1e9:8.3g} GB  {term.name}: {term.formula}  [{term.source}]"
        for term in held(model, plan, most)
    ]
    torch, device = most.measured("reserved"), most.measured("device")
    text.append(
        f"  {most.total / 1e9:8.3g} GB allocated; reserved by torch's allocator {torch.low / 1e9:.3g} to "
        f"{torch.high / 1e9:.3g} (up to {FRAGMENTATION:.0%} between its blocks: Guo et al. 2024); on the device "
        f"{device.low / 1e9:.3g} to {device.high / 1e9:.3g} of {memory_gb(plan, cluster, most.stage):g}"
    )
    return text + shortage(model, plan, cluster, stages)


def shortage(model: Description, plan: Plan, cluster: Topology, stages: Sequence[Memory]) -> list[str]:
    """Return lines: the memory that is missing, the largest term, and changes that help; empty for a plan that fits."""
    most = fullest(plan, cluster, stages)
    limit = memory_gb(plan, cluster, most.stage) * 1e9
    over = most.total + most.reserved - limit
    if over <= 0:
        return []
    largest = held(model, plan, most)[0]
    smallest = min(stage_gpus(plan, cluster, most.stage), key=lambda gpu: gpu.memory_gb).name
    text = [
        f"does not fit: stage {most.stage} needs {over / 1e9:.3g} GB more than the {limit / 1e9:g} of "
        f"{smallest}; most is {largest.name}, {largest.nbytes / 1e9:.3g} GB"
    ]
    changes = reliefs(model, plan, cluster, stages)
    for relief in changes[:4]:
        text.append(f"  with {relief.change}: {relief.nbytes / 1e9:.3g} GB" + (", fits" if relief.fits else ""))
    together: list[str] = []
    while changes and not changes[0].fits:  # the best change, then the best one on top of it
        together.append(changes[0].change)
        plan = changes[0].plan
        layers = [stage.layers for stage in stages]
        changes = reliefs(model, plan, cluster, memory(model, plan, layers))
    if changes and together:
        text.append(f"  with {', '.join([*together, changes[0].change])}: {changes[0].nbytes / 1e9:.3g} GB, fits")
    return text


def reliefs(model: Description, plan: Plan, cluster: Topology, stages: Sequence[Memory]) -> list[Relief]:
    """Single changes that reduce the peak of the fullest rank, best first. Layers stay on their stages."""
    layers = [stage.layers for stage in stages]
    before = _over(plan, cluster, fullest(plan, cluster, stages))
    helpful = []
    for field, value in _changes(plan):
        try:
            changed = replace(plan, **{field: value})  # type: ignore[arg-type]
            changed.check(model, cluster)
        except ValueError:
            continue
        most = fullest(changed, cluster, memory(model, changed, layers))
        if (over := _over(changed, cluster, most)) < before:
            helpful.append(Relief(f"{field}={value!r}", changed, most.total + most.reserved, over <= 0))
    return sorted(helpful, key=lambda relief: relief.nbytes)


def fullest(plan: Plan, cluster: Topology, stages: Sequence[Memory]) -> Memory:
    """Return the stage with the least memory left on its GPUs."""
    if len(cluster.kinds) == 1:
        return max(stages, key=lambda stage: stage.total)
    return max(stages, key=lambda stage: _over(plan, cluster, stage))


def _over(plan: Plan, cluster: Topology, stage: Memory) -> float:
    """Bytes that a stage needs beyond the memory of its smallest GPU; negative if it fits."""
    return stage.total + stage.reserved - memory_gb(plan, cluster, stage.stage) * 1e9


def _changes(plan: Plan) -> Iterator[tuple[str, object]]:
    """Yield changes of one field each, on the same ranks; some may be impossible."""
    yield from (("zero", stage) for stage in range(plan.zero + 1, 4) if plan.shared_by > 1)
    yield from (("recompute", how) for how in ("selective", "full") if how != plan.recompute != "full")
    if plan.microbatch % 2 == 0:
        yield "microbatch", plan.microbatch // 2
    if plan.tensor > 1 and not plan.sequence_parallel:
        yield "sequence_parallel", True
    if plan.attention == "parts":
        yield "attention", "flash2"
    if plan.loss != "fused":
        yield "loss", "fused"
    if plan.schedule in ("gpipe", "zb-h2"):
        yield "schedule", "1f1b"
    if plan.offload == "none":
        yield "offload", "optimizer"
