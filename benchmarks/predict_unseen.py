"""Runs of sources that no fit of constants has used: convolutional networks, BERT, older and newer software.

Anything that a source's rows do not state was taken from its own documents before the first prediction was made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from predict_rows import MEASURED, SOFTWARE, Row, from_row, read

from labkit.hardware import GPU, LINKS, Topology, topology
from labkit.predict import FITTED, Constants, OneOf, Plan, Transformer, model, predict
from labkit.predict.costs.collectives import Wires
from labkit.predict.costs.layers import transformer_layer
from labkit.predict.costs.matmul import Processor

# GPUs without a preset in the lab. NVIDIA's P100 data sheet, SXM2; efficiencies are the V100's.
P100 = GPU(
    "p100-16gb", 10.6, 10.6, 16.0, 732.0, "NVIDIA P100 data sheet (SXM2)", matmul_efficiency=0.75,
    memory_efficiency=0.85, host_link="pcie3", multiprocessors=56,
)  # fmt: skip

# Images per GPU: PyTorch/Classification/ConvNets/configs.yml of NVIDIA/DeepLearningExamples, for DGXA100 and DGX1V.
IMAGES: dict[tuple[str, ...], int] = {
    ("ResNet50 v1.5", "amp"): 256, ("ResNet50 v1.5", "tf32"): 256, ("ResNet50 v1.5", "fp32"): 112,
    ("ResNeXt101-32x4d", "amp"): 128, ("ResNeXt101-32x4d", "tf32"): 128, ("ResNeXt101-32x4d", "fp32"): 64,
    ("SE-ResNeXt101-32x4d", "amp"): 128, ("SE-ResNeXt101-32x4d", "tf32"): 128, ("SE-ResNeXt101-32x4d", "fp32"): 64,
    ("SE-ResNeXt101-32x4d", "V100", "amp"): 112,
}  # fmt: skip
# Sequences per GPU and microbatch, by length: for A100s as in the rows of several nodes; for V100s with 32 GB as in the
# table "Pre-training NVIDIA DGX-1 With 32G" of that repository's PyTorch/LanguageModeling/BERT/README.md.
SEQUENCES = {
    ("A100", "amp", 128): 256, ("A100", "tf32", 128): 128, ("A100", "amp", 512): 32, ("A100", "tf32", 512): 16,
    ("V100", "amp", 128): 64, ("V100", "fp32", 128): 32, ("V100", "amp", 512): 8, ("V100", "fp32", 512): 4,
}  # fmt: skip
# The same README: 8192 and 4096 sequences per GPU and step.
ACCUMULATED = {128: 8192, 512: 4096}
# Its lddl/README.md: sequences of 512 are binned by 64 and padded only to the longest of a batch, so that their mean
# length is that of their tokens, half of 512 (Krell et al. 2021, arXiv 2107.02027), plus half a bin. run_pretraining.py
# of that version: the head sees masked tokens, 15 %, and the module is compiled by TorchScript, which fuses passes.
LONG = {128: 128, 512: 288}
MASKED = 0.15
_MIXED = {"precision": "fp16", "gradients": "fp32"}
_SCRIPTED: dict[str, Any] = {"fusion": "kernels", "attention": "parts", "loss": "eager"}
PRECISION: dict[str, dict[str, Any]] = {
    "amp": _MIXED, "fp16": _MIXED, "tf32": {"precision": "tf32"}, "fp32": {"precision": "fp32"},
}  # fmt: skip
CONVOLUTIONAL = {
    "ResNet50 v1.5": "resnet50", "ResNet-50 v1.5": "resnet50", "ResNet-101": "resnet101",
    "ResNeXt101-32x4d": "resnext101-32x4d", "SE-ResNeXt101-32x4d": "se-resnext101-32x4d",
}  # fmt: skip
ON_EIGHT = ", 8 GPUs"
"""End of a group's name: the rows of the same network on all GPUs of a node."""

BLIND = {
    "Megatron-LM, January 2021": "5.0% (4.9%), +2.8%",
    "DeepLearningExamples, ResNet50 v1.5": "37.4% (18.9%), +33.0%",
    "DeepLearningExamples, ResNet50 v1.5, 8 GPUs": "11.4% (11.3%), -10.0%",
    "DeepLearningExamples, ResNeXt101-32x4d": "34.1% (24.9%), +30.3%",
    "DeepLearningExamples, ResNeXt101-32x4d, 8 GPUs": "12.7% (13.5%), -3.7%",
    "DeepLearningExamples, SE-ResNeXt101-32x4d": "21.8% (12.8%), +13.3%",
    "DeepLearningExamples, SE-ResNeXt101-32x4d, 8 GPUs": "17.3% (16.7%), -12.2%",
    "DeepLearningExamples, ResNet-50 in MXNet": "15.0% (12.4%), -4.6%",
    "DeepLearningExamples, ResNet-50 in TensorFlow": "19.0% (20.1%), -16.9%",
    "DeepLearningExamples, BERT-Large": "82.8% (82.9%), +82.8%",
    "MLPerf 4.0, ResNet-50": "76.9% (76.9%), +76.9%",
    "MLPerf 4.0, BERT-Large": "16.5% (16.5%), +16.5%",
    "Horovod, ResNet-101": "32.8% (32.8%), +32.8%",
    "LLM Foundry in fp8": "2.8% (1.4%), -2.4%",
    "LLM Foundry, 128 to 512 H100": "5.3% (4.8%), -5.3%",
    "Korthikanti et al., table 4, one layer": "12.0% (13.3%), +12.0%",
}
"""Errors of the first prediction of these rows, with `FITTED` as it was then. The costs of convolutions, and the facts
above about BERT's data and script, were corrected after it; ResNets on 8 GPUs, in MXNet and in TensorFlow were first
predicted when they had been."""


def unseen(folder: Path = MEASURED) -> dict[str, list[Row]]:
    """Return rows by group, without rows that only quote a number, or that another source has too."""
    groups: dict[str, list[Row]] = {}
    for name, reader in READERS.items():
        for row in read(name, folder):
            if "recalled" in row["provenance"].lower() or "formula" in row["provenance"]:
                continue
            for group, made in reader(row):
                groups.setdefault(group, []).append(made)
    return groups


def _megatron(row: dict[str, str]) -> Iterator[tuple[str, Row]]:
    """Yield rows of Megatron-LM of January 2021. Its first row is also in SC21, which a fit has used."""
    if row["layers"] == "24":
        return
    layers, width, heads = int(row["layers"]), int(row["hidden"]), int(row["heads"])
    described = Transformer(row["model"], layers, width, heads, int(row["vocab"]), int(row["seq"]), tied=True,
        dropout=True)  # fmt: skip
    gpus, tensor, pipeline = int(row["gpus"]), int(row["tp"]), int(row["pp"])
    plan: dict[str, Any] = {
        **SOFTWARE["megatron_sc21"], "batch": int(row["gbs"]), "data": gpus // tensor // pipeline, "tensor": tensor,
        "pipeline": pipeline, "recompute": "full",
    }  # fmt: skip
    cluster = topology("dgx-a100", nnodes=gpus // 8)
    plan["microbatch"] = OneOf(tuple(_fitting(described, plan, cluster)))
    yield "Megatron-LM, January 2021", Row(row["row_id"], "", described, plan, cluster, float(row["step_time_s"]))


def _fitting(described: Transformer, plan: dict[str, Any], cluster: Topology) -> Iterator[int]:
    """Yield possible microbatches, which the row does not state: those that divide the batch and fit into memory."""
    for size in (1, 2, 4, 8, 16):
        if plan["batch"] % (size * plan["data"]) == 0 and (
            predict(described, Plan(**plan, microbatch=size), cluster).fits
        ):
            yield size


def _deep_learning_examples(row: dict[str, str]) -> Iterator[tuple[str, Row]]:
    """Yield rows in PyTorch. Those of ResNets on 8 GPUs are groups of their own: they were predicted later."""
    gpus, precision, kind = int(row["gpus"]), row["precision"], row["gpu"][:4]
    if row["model"] in CONVOLUTIONAL:
        each = IMAGES.get((row["model"], kind, precision)) or IMAGES[row["model"], precision]
        software = {"fusion": "none", "channels_last": precision == "amp"}  # `memory_format: nhwc` is AMP's alone
        made = _row(row, model(CONVOLUTIONAL[row["model"]]), each * gpus, each, software)
        yield f"DeepLearningExamples, {row['model']}" + (ON_EIGHT if gpus > 1 else ""), made
        return
    sequence = int(float(row["seq"]))
    each = SEQUENCES[kind, precision, sequence]
    described = replace(model("bert-large"), sequence=LONG[sequence], head_tokens=int(LONG[sequence] * MASKED))
    batch = int(float(row["gbs"])) if row["gbs"] else ACCUMULATED[sequence] * gpus
    yield "DeepLearningExamples, BERT-Large", _row(row, described, batch, each, _SCRIPTED)


def _resnet50_in_other_frameworks(row: dict[str, str]) -> Iterator[tuple[str, Row]]:
    """Yield ResNet-50 in MXNet and TensorFlow, on the machines of the rows in PyTorch.

    MXNet's `runner`: in mixed precision channels last, batch norm, sum and ReLU in one kernel, gradients in 16 bits;
    else neither. TensorFlow: XLA, channels last (`--data_format`).
    """
    framework, each = row["framework"].split()[0], int(row["mbs"])
    mixed = row["precision"] == "amp"
    if framework == "MXNet":
        software = {"fusion": "kernels" if mixed else "none", "channels_last": mixed, "gradients": "16-bit"}
    else:
        software = {"fusion": "compiled"}
    made = _row(row, model("resnet50"), each * int(row["gpus"]), each, software)
    yield f"DeepLearningExamples, ResNet-50 in {framework}", made


def _mlperf(row: dict[str, str]) -> Iterator[tuple[str, Row]]:
    each = int(float(row["mbs"]))
    if row["model"] in CONVOLUTIONAL:
        yield "MLPerf 4.0, ResNet-50", _row(row, model("resnet50"), each * 8, each, {"fusion": "kernels"})
        return
    # Padding is left out (`--unpad`), half of all tokens at 512 (Krell et al. 2021, arXiv 2107.02027); the head
    # sees masked tokens only (`--dense_seq_output`, 76 of 512); `--distributed_lamb`.
    described = replace(model("bert-large"), sequence=256, head_tokens=38)
    software = {"fusion": "kernels", "attention": "flash2", "zero": 1, "precision": "fp8"}
    yield "MLPerf 4.0, BERT-Large", _row(row, described, each * 8, each, software)


def _horovod(row: dict[str, str]) -> Iterator[tuple[str, Row]]:
    if row["metric"] == "throughput":
        yield "Horovod, ResNet-101", _row(row, model("resnet101"), 64 * 16, 64, {"fusion": "none"})


def _foundry_in_fp8(row: dict[str, str]) -> Iterator[tuple[str, Row]]:
    """Yield rows of the software of "llm_foundry_mpt", whose 16-bit rows a fit has used."""
    if made := from_row("llm_foundry_mpt", row):
        yield "LLM Foundry in fp8", made


def _foundry_at_large(row: dict[str, str]) -> Iterator[tuple[str, Row]]:
    """Yield rows of 128 to 512 GPUs; those of up to 64 in "llm_foundry_mpt" a fit has used."""
    if made := from_row("llm_foundry_mpt", row):
        yield "LLM Foundry, 128 to 512 H100", made


@dataclass(frozen=True)
class Scaling:
    """Rates of the same training on one GPU and on all of a node, as often as on one GPU: 8 would be perfect."""

    network: str
    software: str
    gpu: str
    precision: str
    gpus: int
    measured: float
    predicted: float


def scalings(folder: Path = MEASURED) -> Iterator[Scaling]:
    """Yield DeepLearningExamples' networks on the most GPUs of one node whose rate on one GPU is published, too."""
    runs: dict[tuple[str, str, str, str], dict[int, tuple[float, float]]] = {}
    for name in ("nvidia_dle_dp", "nvidia_dle_resnet50"):
        for row in read(name, folder):
            for _, made in READERS[name](row):
                if made.cluster.nnodes == 1:
                    key = (row["model"] + row["seq"].removesuffix(".0"), row["framework"], row["gpu"], row["precision"])
                    gpus, rate = made.cluster.world_size, predict(made.model, Plan(**made.plan), made.cluster)
                    runs.setdefault(key, {})[gpus] = float(row["value"]), rate.samples_per_second
    for key, rates in runs.items():
        most = max(rates)
        if 1 in rates and most > 1:
            measured, predicted = (rates[most][i] / rates[1][i] for i in (0, 1))
            yield Scaling(*key, most, measured, predicted)


def efficiencies(folder: Path = MEASURED) -> Iterator[tuple[str, float, float]]:
    """Yield images per second and GPU on 128 P100s, relative to one: measured by Horovod, and predicted."""
    for row in read("ddp_fsdp_misc", folder):
        name = {"ResNet-101": "resnet101", "VGG-16": "vgg16"}.get(row["model"])
        if name is None or not row["metric"].startswith("scaling efficiency"):
            continue
        rates = []
        for gpus in (1, 128):
            plan = Plan(64 * gpus, 64, gpus, precision="fp32", fusion="none")
            cluster = replace(_cluster(row, 4), nnodes=max(1, gpus // 4), nproc_per_node=min(4, gpus))
            rates.append(predict(model(name), plan, cluster).samples_per_second / gpus)
        yield row["model"], float(row["value"]) / 100, rates[1] / rates[0]


def _row(row: dict[str, str], described: Any, batch: int, each: int, software: dict[str, Any]) -> Row:
    gpus = int(row["gpus"])
    plan = {
        "batch": batch, "microbatch": each, "data": gpus, **PRECISION.get(row["precision"], {}), **software,
    }  # fmt: skip
    return Row(row["row_id"], "", described, plan, _cluster(row, gpus), batch / float(row["value"]))


def _cluster(row: dict[str, str], gpus: int) -> Topology:
    if "P100" in row["gpu"]:  # four in a server with one card of 25 Gb/s
        return topology("dgx-1", gpu=P100, nnodes=gpus // 4, nproc_per_node=4, nics_per_node=1,
            inter_node=LINKS["ethernet-25g"])  # fmt: skip
    preset = {"A100": "dgx-a100", "H100": "dgx-h100", "V100": "dgx-1"}[row["gpu"][:4]]
    each = min(16 if row["gpus_per_node"] == "16" else 8, gpus)  # a DGX-2 has 16
    memory = re.search(r"(\d+)GB", row["gpu"])
    gpu = {"16": "v100-16gb", "40": "a100-40gb"}.get(memory[1]) if memory else None
    return topology(preset, nnodes=gpus // each, nproc_per_node=each, nics_per_node=each, gpu=gpu)


READERS = {
    "megatron_readme_jan2021": _megatron,
    "nvidia_dle_dp": _deep_learning_examples,
    "nvidia_dle_resnet50": _resnet50_in_other_frameworks,
    "mlperf_train_v4_0": _mlperf,
    "ddp_fsdp_misc": _horovod,
    "llm_foundry_fp8": _foundry_in_fp8,
    "llm_foundry_large": _foundry_at_large,
}


def layer_seconds(folder: Path = MEASURED, constants: Constants = FITTED) -> Iterator[tuple[float, float]]:
    """Seconds of forward and backward of one layer of 22B over 8 A100s, measured (Korthikanti et al., table 4) and
    predicted."""
    cluster = topology("dgx-a100")
    for row in read("seqpar_2205_05198", folder):
        if row["metric"] != "combined time per layer":
            continue
        how = row["recompute"].lower()
        described = Transformer("22B", 1, int(row["hidden"]), int(row["heads"]), 51_200, int(row["seq"]), dropout=True)
        plan = Plan(
            batch=4, microbatch=4, tensor=8, sequence_parallel="sequence" in how, **SOFTWARE["seqpar_2205_05198"],
            recompute="selective" if "selective" in how else "full" if "with recompute" in how else "none",
        )  # fmt: skip
        processor = Processor(cluster.gpu, plan.dtype, constants, plan.attention)
        layer = transformer_layer(described, plan, processor, Wires(cluster, constants), constants)
        yield float(row["value"]) / 1e3, layer.seconds
