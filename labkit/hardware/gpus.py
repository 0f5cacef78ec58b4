"""GPUs: peak arithmetic, memory size and memory bandwidth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GPU:
    """One GPU's data-sheet figures: dense, without sparsity."""

    name: str
    bf16_tflops: float
    """Tensor cores, 1e12 operations a second; fp16 where the GPU has no bf16."""
    fp32_tflops: float
    memory_gb: float
    memory_gb_per_s: float
    source: str


GPUS: dict[str, GPU] = {
    gpu.name: gpu
    for gpu in (
        GPU("v100-32gb", 125.0, 15.7, 32.0, 900.0, "NVIDIA V100 data sheet (SXM2)"),
        GPU("t4", 65.0, 8.1, 16.0, 320.0, "NVIDIA T4 data sheet"),
        GPU("a100-40gb", 312.0, 19.5, 40.0, 1555.0, "NVIDIA A100 data sheet (SXM4 40GB)"),
        GPU("a100-80gb", 312.0, 19.5, 80.0, 2039.0, "NVIDIA A100 data sheet (SXM4 80GB)"),
        GPU("h100-80gb", 989.0, 67.0, 80.0, 3350.0, "NVIDIA H100 data sheet (SXM5)"),
        GPU("h200-141gb", 989.0, 67.0, 141.0, 4800.0, "NVIDIA H200 data sheet (SXM5)"),
    )
}
