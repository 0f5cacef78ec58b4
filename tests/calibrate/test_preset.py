"""A cluster with known figures is recovered from the times that it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit.calibrate.machine import Machine
from labkit.calibrate.preset import build
from labkit.calibrate.timing import Sample
from labkit.clusters.virtual.scheduler.nccl_cost_model import choose
from labkit.hardware import GPUS
from labkit.predict import FITTED
from labkit.predict.costs.collectives import Group, Wires

CPU = Machine("cpu", "a processor", 4, 2, 8e9, 6e9)
H100 = Machine("cuda", "NVIDIA H100 80GB HBM3", 4, 1, 85e9, 84e9)
BASE, GATHER_BASE, HOP, LATENCY, RATE, BUS = 50e-6, 10e-6, 20e-6, 20e-6, 4e9, 1e9


def times(ranks: int, flops: dict[str, float]) -> list[Sample]:
    """Return what would be measured on a machine with the figures above."""
    made = [
        Sample("product", f"n = {n}", 2.0 * n**3, 1e-6 + 2.0 * n**3 / rate, 0.01, dtype)
        for dtype, rate in flops.items()
        for n in (64, 256, 1024)
    ]
    made += [Sample("copy", f"{mb} MB", 2e6 * mb, 2e6 * mb / 2e12, 0.02) for mb in (8, 16)]
    made += [Sample("launch", "one operator", 0, 3e-6, 0)]
    # 5 kernels of 10 us a layer, and 150 us to start a backward pass
    made += [Sample("layer", f"{count} tiny ones", count, 150e-6 + count * 50e-6, 0) for count in (4, 8, 32)]
    made += [Sample("pass", "relu", 8e6, 8e6 / 1e12, 0), Sample("optimizer", "Adam", 1e6, 28e6 / 1e12, 0)]
    for size in (1024.0, 65536.0, float(1 << 22)):
        made.append(Sample("send", "", size, LATENCY + size / RATE, 0))
        for kind, turns in (("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)):
            seconds = (BASE if turns == 2 else GATHER_BASE) + turns * (ranks - 1) * (HOP + size / ranks / BUS)
            made.append(Sample(kind, "", size, seconds, 0.05))
    return [
        *made,
        *(Sample(f"overlap {what}", "", 1, t, 0) for what, t in (("reduce", 2), ("compute", 3), ("both", 4))),
    ]


def test_a_known_machine_is_found_again() -> None:
    made = build(CPU, times(4, {"float32": 1e11, "bfloat16": 2e11}), "measured 2026-01-01")
    cluster, constants = made.cluster, dict(made.cluster.constants)
    assert cluster.gpu.fp32_tflops == pytest.approx(0.1) and cluster.gpu.bf16_tflops == pytest.approx(0.2)
    assert cluster.gpu.memory_gb_per_s == pytest.approx(2000) and cluster.gpu.memory_gb == 8
    assert cluster.gpu.multiprocessors == 2
    assert cluster.intra_node.latency_seconds == pytest.approx(LATENCY)
    assert cluster.intra_node.gb_per_s == pytest.approx(4) and cluster.intra_node.library == "gloo"
    assert cluster.intra_node.collective_efficiency == pytest.approx(0.25)
    assert constants["collective_base"] == pytest.approx(BASE) and constants["hop_seconds"] == pytest.approx(HOP)
    assert constants["gather_base"] == pytest.approx(GATHER_BASE) and constants["gather_hop"] == pytest.approx(HOP)
    assert constants["kernel_seconds"] == pytest.approx(10e-6) and constants["host_seconds"] == 0
    assert constants["passes_share"] == constants["plain_passes_share"] == pytest.approx(0.5) and constants[
        "optimizer_bytes"
    ] == pytest.approx(28)
    assert constants["overlap_slowdown"] == pytest.approx(0.5)
    assert "measured 2026-01-01" in cluster.gpu.source and "measured 2026-01-01" in cluster.intra_node.source
    assert max(one.error or 0 for one in made.quantities) < 1e-6


def test_predictions_and_virtual_ranks_take_the_measured_times() -> None:
    samples = times(4, {"float32": 1e11})
    made = build(CPU, samples, "measured")
    wires, everyone = Wires(made.cluster, FITTED.on(made.cluster)), Group(4, 4)
    for one in samples:
        if one.what in ("all_reduce", "all_gather", "reduce_scatter"):
            assert getattr(wires, one.what)(one.size, everyone) == pytest.approx(one.seconds, rel=1e-6)
            assert made.seconds[one] == pytest.approx(one.seconds, rel=1e-6)
    large = float(1 << 30)
    predicted = wires.all_reduce(large, everyone)
    assert choose("all_reduce", int(large), (0, 1, 2, 3), made.cluster).seconds == pytest.approx(predicted, rel=0.01)


def test_a_known_gpu_keeps_its_data_sheet_and_what_it_reached_is_its_efficiency() -> None:
    assert H100.known == "h100-80gb"
    made = build(H100, times(4, {"bfloat16": 7.0e14, "float32": 5.0e13, "tf32": 3.5e14}), "measured")
    gpu, sheet = made.cluster.gpu, GPUS["h100-80gb"]
    assert gpu.bf16_tflops == sheet.bf16_tflops and gpu.matmul_efficiency == pytest.approx(7.0e14 / 989e12)
    assert gpu.fp32_tflops * gpu.matmul_efficiency == pytest.approx(50)
    assert gpu.memory_efficiency == pytest.approx(2000 / 3350)
    assert made.cluster.intra_node.name == "nvlink4" and made.cluster.intra_node.library == "nccl"
    assert made.cluster.inter_node.name == "ib-ndr", "not measured"
    assert dict(made.cluster.constants)["host_seconds"] == pytest.approx(10e-6)
    assert "kernel_seconds" not in dict(made.cluster.constants), "not measured"


@pytest.mark.parametrize(
    ("name", "gigabytes", "known"),
    [
        ("NVIDIA A100-SXM4-40GB", 42.4, "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", 85.1, "a100-80gb"),
        ("NVIDIA H200", 150.1, "h200-141gb"),
        ("NVIDIA L4", 23.7, "l4"),
        ("NVIDIA L40S", 47.7, None),
        ("Tesla T4", 15.8, "t4"),
        ("NVIDIA GeForce RTX 4090", 25.3, "rtx-4090"),
        ("NVIDIA H100 NVL", 100.0, None),
    ],
)
def test_gpus_are_known_by_name_and_memory(name: str, gigabytes: float, known: str | None) -> None:
    assert replace(H100, name=name, memory_bytes=gigabytes * 1e9).known == known


def test_an_unknown_gpu_is_what_was_measured() -> None:
    made = build(replace(H100, name="NVIDIA L40S", memory_bytes=47.7e9), times(4, {"float32": 5e13}), "measured")
    assert made.cluster.gpu.name == "nvidia-l40s" and made.cluster.gpu.matmul_efficiency == 1.0
    assert made.cluster.gpu.bf16_tflops == pytest.approx(50)
