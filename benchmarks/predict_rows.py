"""Published training runs as input of `predict`: a model, a plan that may have unknowns, a cluster.

A row gives its sizes; the rest follows from its software, stated once for each source below. Anything not stated
remains a `OneOf`, and the prediction a range, whose middle is compared.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit.hardware import GPUS, LINKS, PRESETS, Topology, topology
from labkit.predict import OneOf, Transformer
from labkit.predict.describe import Description

MEASURED = Path(__file__).parent / "measured"
PRESET = {"A100": "dgx-a100", "H100": "dgx-h100", "H200": "dgx-h200", "B200": "dgx-b200", "V100": "dgx-1"}
"""Presets by the first part of a row's GPU, which may go on with its memory: `A100-SXM4-40GB`."""


@dataclass(frozen=True)
class Row:
    """One timed run."""

    key: str
    source: str
    model: Description
    plan: dict[str, Any]
    cluster: Topology
    seconds: float
    gib: float | None = None
    """Published peak memory of a rank, in GiB."""


def read(name: str, folder: Path = MEASURED) -> Iterator[dict[str, str]]:
    """Yield the rows of a source; none if the folder does not have it."""
    if not (folder / f"{name}.csv").exists():
        return
    with (folder / f"{name}.csv").open() as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


# How each source's software works, where the rows do not say so. Megatron of 2021 and its forks: unfused attention
# with fused softmax, nothing overlapped. LLM Foundry: FSDP, gradients reduced in every microbatch, attention by
# FlashAttention. torchtitan: FSDP2. nanotron: FlashAttention, sequence parallelism, fp32 gradients, stages balanced
# by cost.
_MEGATRON = {"precision": "fp16", "attention": "parts", "overlap": False}
SOFTWARE: dict[str, dict[str, Any]] = {
    "megatron_sc21": _MEGATRON,
    "seqpar_2205_05198": _MEGATRON,
    "vtrain_single": _MEGATRON,
    "vtrain_multi": _MEGATRON,
    "zero_bubble_2401_10241": {**_MEGATRON, "balance": "ends"},
    "mcore_h100_readme": {
        "overlap_tensor": True, "attention": "flash3", "gradients": "fp32", "recompute": OneOf(("none", "selective")),
        "microbatch": OneOf((1, 2, 4)),
    },
    "llm_foundry_mpt": {"fusion": "none", "loss": "fused", "attention": "flash1", "early_stop": True},
    "torchtitan": {"fusion": "none", "loss": "eager", "recompute": "full", "gradients": "fp32", "adam": "foreach"},
    "ultrascale_nanotron": {"gradients": "fp32", "gradient_copies": True, "overlap": False, "balance": "matrices",
        "loss": "copied", "run_ahead": False, "fusion": "norms",
    },
}  # fmt: skip

SCHEDULES = {"1F1B": "1f1b", "interleaved": "interleaved", "ZB-1p": "zb-h1", "ZB-2p": "zb-h2", "ZB-H1": "zb-h1"}


def rows(name: str, folder: Path = MEASURED) -> list[Row]:
    """Return all timed rows of one source whose model and layout are given."""
    made = (from_row(name, row) for row in read(name, folder) if row["step_time_s"] and row["layers"] and row["gpus"])
    usable = [row for row in made if row is not None]
    memory = {
        key: float(row["value"]) * (1 if row["unit"] == "GiB" else 1e9 / 2**30)
        for row in read(name, folder)
        if "peak memory" in row["metric"]
        for key in [_identity(row)]
    }
    by_key = {row["row_id"]: _identity(row) for row in read(name, folder)}
    return [
        replace(row, gib=row.gib or memory.get(by_key[row.key])) if row.gib or by_key[row.key] in memory else row
        for row in usable
    ]


def _identity(row: dict[str, str]) -> tuple[str, ...]:
    fields = ("model", "layers", "gpus", "gpu", "tp", "pp", "mbs", "gbs", "schedule", "recompute", "precision", "seq")
    return tuple(row[field] for field in fields)


def from_row(name: str, row: dict[str, str]) -> Row | None:
    """Read one row of a file, with the software of the source `name`."""

    def whole(field: str, otherwise: int = 1) -> int:
        match = re.match(r"\d+", row[field])
        return int(match[0]) if match else otherwise

    gpus, tensor, pipeline, context = whole("gpus"), whole("tp"), whole("pp"), whole("cp")
    data = gpus // (tensor * pipeline * context)
    plan: dict[str, Any] = {
        "batch": whole("gbs"), "microbatch": whole("mbs"), "data": data, "tensor": tensor, "pipeline": pipeline,
        "context": context, "zero": whole("zero", 0), "chunks": whole("vpp"), "recompute": _recompute(row["recompute"]),
        "sequence_parallel": "SP" in row["recompute"] and tensor > 1,
        **SOFTWARE[name],
    }  # fmt: skip
    schedule = row["schedule"].split(" ")[0]
    if pipeline > 1 and schedule in SCHEDULES:
        plan["schedule"] = SCHEDULES[schedule]
    if name == "mcore_h100_readme" and pipeline > 1:  # chunks are not stated
        plan.update(schedule="interleaved", chunks=OneOf((2, 4, 8)))
    elif plan["chunks"] > 1:
        plan["schedule"] = "interleaved"
    if name == "torchtitan" and "full" not in row["recompute"]:
        # every other layer; or, in every layer, all but half of the products
        plan["recomputed_layers"] = 0.5 if "layer" in row["recompute"] else 0.65
    if "compile" in row["precision"]:
        plan["fusion"] = "compiled"
    if "DEFAULT" in row["precision"]:  # Composer's mixed precision of that name reduces gradients in fp32
        plan["gradients"] = "fp32"
    if "fp8" in row["precision"]:
        plan["precision"] = "fp8"
    if name in ("ultrascale_nanotron", "mcore_h100_readme", "torchtitan"):
        plan["sequence_parallel"] = tensor > 1
    llama = "Llama" in row["arch"] or "Llama" in row["model"]
    vocab = whole("vocab", _vocab_unstated(name, whole("hidden")))
    model = Transformer(
        row["model"], whole("layers"), whole("hidden"), whole("heads"), vocab, whole("seq"),
        whole("kv_heads", whole("heads")), whole("ffn", 4 * whole("hidden")), gated=llama, biases=not llama,
        rotary=llama, rms_norm=llama, tied="tied" in row["arch"] or not llama,
        dropout=not llama and name not in ("llm_foundry_mpt", "mcore_h100_readme"),
    )  # fmt: skip
    noted = re.search(r"mem ([\d.]+) GB", row["notes"])
    return Row(
        row["row_id"],
        name,
        model,
        plan,
        _cluster(row, gpus),
        float(row["step_time_s"]),
        float(noted[1]) if noted else None,
    )


def _vocab_unstated(name: str, width: int) -> int:
    """Return GPT-2's; for zero bubble, whose end stages have one layer fewer, one whose head costs like a layer."""
    return 12 * width if name == "zero_bubble_2401_10241" else 50_304


def _recompute(text: str) -> str:
    if "full" in text:
        return "full"
    return "selective" if "selective" in text else "none"


def _cluster(row: dict[str, str], gpus: int) -> Topology:
    """Return the preset of the GPU, with the row's network; nodes of 8, or of as many as ran."""
    kind = next(kind for kind in PRESET if row["gpu"].startswith(kind))
    preset = PRESET[kind]
    per_node = min(gpus, 8)
    speed = re.match(r"\d+", row["inter_gbps_per_gpu"])
    link = PRESETS[preset].inter_node
    if "nanotron" in row["framework"]:
        link = LINKS["efa-400g"]  # Hugging Face's cluster has AWS p5 nodes
    elif speed:
        # the same cards at the row's rate, in Gb/s per GPU
        link = replace(LINKS["ib-hdr"], name=f"{speed[0]} Gb/s", gb_per_s=int(speed[0]) / 8)
    gpu = PRESETS[preset].gpu
    memory = re.search(r"(\d+)GB", row["gpu"])
    if memory and (other := GPUS.get(f"{kind.lower()}-{memory[1]}gb")):
        gpu = other
    if "500W" in row["gpu"]:  # HBM2e of 2.4 TB/s
        gpu = replace(gpu, memory_gb=96.0, memory_gb_per_s=2400.0, power_limit_watts=500.0)
    return topology(
        preset, nnodes=gpus // per_node, nproc_per_node=per_node, nics_per_node=per_node, inter_node=link, gpu=gpu
    )
