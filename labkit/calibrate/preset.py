"""Builds a cluster, for predictions and virtual ranks, from measured samples, each figure with its spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from labkit.calibrate.fitting import Fit, fit, line
from labkit.calibrate.machine import Machine
from labkit.calibrate.timing import Sample
from labkit.hardware import GPU, GPUS, PRESETS, STORAGE, Link, Topology, topology

KERNELS = 5
"""Kernels that predictions count in one linear layer with its activation: 2 forward, 3 backward."""
_RATES = {"bfloat16": "bf16_tflops", "float32": "fp32_tflops", "tf32": "tf32_tflops", "float64": "fp64_tflops"}


@dataclass(frozen=True)
class Quantity:
    """One figure of the preset."""

    name: str
    """Name of the setting, as for `--set`: `gpu.fp32_tflops`."""
    value: float
    unit: str
    spread: float
    """Median interquartile range of the underlying samples, as a share of their median."""
    error: float | None
    """Median error of the fitted line on its samples; None if nothing was fitted."""

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class FittedPreset:
    """The preset, its figures, and the fitted time of each sample."""

    cluster: Topology
    quantities: tuple[Quantity, ...]
    seconds: Mapping[Sample, float]
    """Fitted seconds, for samples with a fit."""


def build(machine: Machine, samples: Sequence[Sample], source: str) -> FittedPreset:
    """Build the preset; `source` is recorded in every measured part. Raises NoFit if times contradict each other."""
    made = _PresetBuilder(samples)
    constants: dict[str, float] = {}
    gpu, copying = _processor(machine, made, source, constants)
    known = machine.known
    base = None if known is None else next((one for one in PRESETS.values() if one.gpu.name == known), None)
    if base is None:
        base = topology(gpu=gpu)
    cluster = replace(base, nnodes=1, nproc_per_node=machine.ranks, gpu=gpu, name=f"measured-{gpu.name}")
    if machine.device == "cpu":
        memory = Link("memory", copying / 1e9, gpu.launch_seconds, source)
        shared = copying * machine.ranks / 1e9
        cluster = replace(cluster, host_link=memory, host_memory_gb_per_s=shared, storage=STORAGE["nvme-1"])
    if made.of("all_reduce"):
        link = _link(machine, made, source, constants, base.intra_node.name)
        cluster = replace(cluster, intra_node=link)
        if machine.device == "cpu":  # simulated nodes are this machine too
            constants["network_hops"] = constants["hop_seconds"] / max(link.latency_seconds, 1e-9)
            cluster = replace(cluster, inter_node=link, nics_per_node=machine.ranks)
    return FittedPreset(replace(cluster, constants=tuple(constants.items())), tuple(made.quantities), made.seconds)


class _PresetBuilder:
    """Samples by kind, and the figures fitted to them so far."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        self.quantities: list[Quantity] = []
        self.seconds: dict[Sample, float] = {}

    def of(self, *kinds: str, dtype: str = "") -> list[Sample]:
        return [sample for sample in self.samples if sample.what in kinds and (not dtype or sample.dtype == dtype)]

    def line(self, used: Sequence[Sample], what: str) -> Fit:
        fitted = line([sample.size for sample in used], [sample.seconds for sample in used], what)
        self.keep(used, fitted)
        return fitted

    def keep(self, used: Sequence[Sample], found: Fit) -> None:
        self.seconds.update(
            {sample: sample.seconds * (1 + error) for sample, error in zip(used, found.errors, strict=True)}
        )

    def say(self, name: str, value: float, unit: str, used: Sequence[Sample], found: Fit | None = None) -> None:
        spread = median(sample.spread for sample in used)
        error = None if found is None else found.median_error
        self.quantities.append(Quantity(name, value, unit, spread, error))


def _processor(machine: Machine, made: _PresetBuilder, source: str, constants: dict[str, float]) -> tuple[GPU, float]:
    """Return the GPU, or the CPU as one, and the bytes per second of copies. Adds to `constants`."""
    reached = {}
    for dtype, field in _RATES.items():
        if used := made.of("product", dtype=dtype):
            fitted = made.line(used, f"matrix products of {dtype}")
            reached[field] = 1 / fitted.costs[1] / 1e12
            made.say(f"gpu.{field}", reached[field], "TFLOP/s", used, fitted)
    copies = made.of("copy")
    fitted = made.line(copies, "copies")
    copying = 1 / fitted.costs[1]
    made.say("gpu.memory_gb_per_s", copying / 1e9, "GB/s, read and written", copies, fitted)
    (launch,), layers = made.of("launch"), made.of("layer")
    made.say("gpu.launch_seconds", launch.seconds, "s", [launch])
    overhead = made.line(layers, "tiny layers")
    kernel = overhead.costs[1] / KERNELS  # not the start of a backward pass, which a step pays once
    if machine.device == "cpu":
        # the CPU both prepares and computes an operator: nothing runs ahead, and no tiles fill a pipeline
        constants.update(kernel_seconds=kernel, host_seconds=0.0, ramp_k=0.0, fill_seconds=0.0)
        made.say("constants.kernel_seconds", kernel, "s, of eager forward and backward", layers, overhead)
        (relu,), (adam,) = made.of("pass"), made.of("optimizer")
        rate = relu.size / relu.seconds
        constants["passes_share"] = constants["plain_passes_share"] = rate / copying
        made.say("constants.passes_share", rate / copying, "of the copying rate", [relu])
        constants["optimizer_bytes"] = adam.seconds / adam.size * rate
        made.say("constants.optimizer_bytes", constants["optimizer_bytes"], "bytes a parameter", [adam])
    else:
        constants["host_seconds"] = kernel
        made.say("constants.host_seconds", kernel, "s, of eager forward and backward", layers, overhead)
    return _described(machine, reached, copying, launch.seconds, source), copying


def _described(machine: Machine, reached: dict[str, float], copying: float, launch: float, source: str) -> GPU:
    """Return the GPU; a known one keeps its data sheet's peaks for 16 bits and memory, and its efficiency is the share
    of them that was reached."""
    known = machine.known
    bf16 = reached.get("bf16_tflops", reached["fp32_tflops"])
    if known is None:
        name = "cpu" if machine.device == "cpu" else machine.name.lower().replace(" ", "-")
        return GPU(
            name, bf16, reached["fp32_tflops"], machine.memory_bytes / 1e9, copying / 1e9, source,
            tf32_tflops=reached.get("tf32_tflops", 0.0), fp64_tflops=reached.get("fp64_tflops", 0.0),
            matmul_efficiency=1.0, memory_efficiency=1.0, launch_seconds=launch, efficiency_source=source,
            multiprocessors=machine.threads if machine.device == "cpu" else 108,
        )  # fmt: skip
    sheet = GPUS[known]
    efficiency = min(1.0, bf16 / sheet.bf16_tflops)
    # there is one efficiency for all dtypes, so the other dtypes' peaks are set such that it gives the measured rates
    others: dict[str, Any] = {name: rate / efficiency for name, rate in reached.items() if name != "bf16_tflops"}
    return replace(
        sheet, **others, matmul_efficiency=efficiency, launch_seconds=launch, efficiency_source=source,
        memory_efficiency=min(1.0, copying / 1e9 / sheet.memory_gb_per_s),
        source=f"{sheet.source}; {', '.join(others)} from what was {source}",
    )  # fmt: skip


def _link(machine: Machine, made: _PresetBuilder, source: str, constants: dict[str, float], name: str) -> Link:
    """Return the link inside a node: latency and rate from messages; base, hops, share of the rate from collectives."""
    n = machine.ranks
    messages = made.of("send")
    sent = made.line(messages, "messages between two ranks")
    collectives = made.of("all_reduce", "all_gather", "reduce_scatter")
    reducing = [sample.what == "all_reduce" for sample in collectives]
    # an all-reduce passes each byte twice; each kind has its own start-up cost
    rows = [
        (1.0, 0.0, 2 * sample.size) if two else (0.0, 1.0, sample.size)
        for two, sample in zip(reducing, collectives, strict=True)
    ]
    fitted = fit(rows, [sample.seconds for sample in collectives])
    made.keep(collectives, fitted)
    start, gather_start, byte = fitted.costs
    # each step of the ring costs a message's latency, if the start-up cost suffices; the base is the rest
    hop, gather_hop = min(sent.costs[0], start / (2 * (n - 1))), min(sent.costs[0], gather_start / (n - 1))
    base, gather_base = start - 2 * (n - 1) * hop, gather_start - (n - 1) * gather_hop
    bus = (n - 1) / n / byte
    peak = max(bus, 1 / sent.costs[1])
    constants.update(collective_base=max(0.0, base), hop_seconds=hop, fill_seconds=0.0)
    constants.update(gather_base=max(0.0, gather_base), gather_hop=gather_hop)
    made.say("intra_node.latency_seconds", sent.costs[0], "s", messages, sent)
    made.say("intra_node.gb_per_s", peak / 1e9, "GB/s", messages, sent)
    made.say("intra_node.collective_efficiency", bus / peak, "of the rate", collectives, fitted)
    for constant in ("collective_base", "hop_seconds", "gather_base", "gather_hop"):
        made.say(f"constants.{constant}", constants[constant], "s", collectives, fitted)
    reduce, compute, both = (made.of(f"overlap {what}")[0] for what in ("reduce", "compute", "both"))
    longer, shorter = max(reduce.seconds, compute.seconds), min(reduce.seconds, compute.seconds)
    slowdown = min(1.0, max(0.0, (both.seconds - longer) / shorter))
    constants["overlap_slowdown"] = slowdown
    made.say("constants.overlap_slowdown", slowdown, "of the shorter; 1: nothing is hidden", [both])
    library = "nccl" if machine.device == "cuda" else "gloo"
    return Link(
        name if machine.device == "cuda" else "gloo", peak / 1e9, sent.costs[0], source, bus / peak,
        collective_ranks=n, library=library,
    )  # fmt: skip
