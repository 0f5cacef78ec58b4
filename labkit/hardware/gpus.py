"""GPUs: peak arithmetic rates, memory size and bandwidth, and the time of an operator.

Peaks are data-sheet figures, dense, without sparsity. The share of them that programs reach is measured if there is a
published measurement, else assumed; `efficiency_source` of each GPU states which. Sources of the measured ones:

- GEMM: "matmul" rows of stas00/ml-engineering (best bf16 shape: A100 271, H100 795, B200 1745 TFLOP/s) and of Azure's
  AI-benchmarking-guide (cuBLASLt on ND A100 v4, ND H100 v5, ND H200 v5; tests/hardware holds the model against them).
  T4: NVIDIA developer forum 264462 (4096 x 4096 in fp16, 24 TFLOP/s under its 70 W limit).
  V100: NVIDIA developer forum 79781 (8192 x 8192 in fp16 on the PCIe card, 101 of its 112 TFLOP/s).
- Attention: FlashAttention-2's forward, heads of 128, causal (arXiv 2307.08691, figures 4 to 7: about 190 TFLOP/s on
  A100, 420 on H100; masked pairs are not counted).
- Memory: BabelStream copy and triad in the same guide (A100 1.61, 1.70; H100 2.90, 2.97; H200 4.01, 4.15 TB/s).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from labkit.hardware.links import LINKS


@dataclass(frozen=True)
class GPU:
    """One GPU: data-sheet figures (dense, without sparsity), and the share of them that programs reach."""

    name: str
    bf16_tflops: float
    """Rate of tensor cores, 1e12 operations per second; that of fp16 if the GPU has no bf16."""
    fp32_tflops: float
    """Rate of CUDA cores: by default torch multiplies fp32 matrices without TF32."""
    memory_gb: float
    memory_gb_per_s: float
    source: str
    tf32_tflops: float = 0.0
    """Rate of TF32. 0: the GPU has no TF32; fp32's rate is used."""
    fp64_tflops: float = 0.0
    """Rate of fp64. 0: unknown; half of fp32's rate is used."""
    int8_tops: float = 0.0
    """Rate of int8, and of fp8 if the GPU has it. 0: unknown; twice bf16's rate is used."""
    fp8_tflops: float = 0.0
    """Rate of fp8 with fp32 accumulation, as training needs it. 0: int8's rate is used."""
    matmul_efficiency: float = 0.75
    """Share of the arithmetic peak that a large matrix product reaches."""
    attention_efficiency: float = 0.0
    """Share of the arithmetic peak that fused attention reaches in forward. 0: unknown; `matmul_efficiency` is used."""
    memory_efficiency: float = 0.82
    """Share of the peak memory bandwidth that reading and writing large tensors reaches."""
    launch_seconds: float = 6e-6
    """Fixed cost of every operator: launch, filling and draining the GPU, and the host's part in eager torch."""
    efficiency_source: str = "assumed"
    host_link: str = "pcie4"
    """PCIe generation, 16 lanes: a name in `LINKS`."""
    multiprocessors: int = 108
    """Number of multiprocessors, which compute tiles of a matrix product in parallel (NVIDIA's architecture papers)."""
    power_watts: float = 0.0
    """Power at which the data sheet's card is held. 0: unknown."""
    power_limit_watts: float = 0.0
    """Lower power that the card is held at, as by `nvidia-smi --power-limit`. 0: none."""

    def __post_init__(self) -> None:
        for name in ("bf16_tflops", "fp32_tflops", "memory_gb", "memory_gb_per_s", "multiprocessors"):
            if not getattr(self, name) > 0:
                raise ValueError(f"GPU {self.name}: {name} must be above 0, got {getattr(self, name)!r}")
        for name in ("tf32_tflops", "fp64_tflops", "int8_tops", "fp8_tflops", "launch_seconds", "power_watts"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"GPU {self.name}: {name} must be at least 0, got {getattr(self, name)!r}")
        if self.host_link not in LINKS:
            raise ValueError(f"GPU {self.name}: host_link must be one of {', '.join(LINKS)}, got {self.host_link!r}")
        for name in ("matmul_efficiency", "memory_efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"GPU {self.name}: {name} is a share of the peak, got {getattr(self, name)!r}")
        if self.power_limit_watts and not 0 < self.power_limit_watts <= self.power_watts:
            raise ValueError(
                f"GPU {self.name}: power_limit_watts must be above 0 and at most power_watts = {self.power_watts:g}, "
                f"got {self.power_limit_watts!r}"
            )

    @property
    def clock_share(self) -> float:
        """Share of the clocks that a power limit leaves to programs which would draw all of `power_watts`.

        Power is capacitance x voltage^2 x frequency, and the voltage falls with the frequency, so the clocks fall with
        the cube root of the power (Chandrakasan et al. 1992). Memory's clocks are not lowered.
        """
        return (self.power_limit_watts / self.power_watts) ** (1 / 3) if self.power_limit_watts else 1.0

    def seconds(self, flops: float, nbytes: float, dtype: str) -> float:
        """Time of an operator that computes `flops` in `dtype` and moves `nbytes` to and from memory: launch +
        roofline.

        The roofline (Williams, Waterman & Patterson 2009) takes the longer of computing and moving, each at its stated
        share of the peak. `dtype` is torch's name (`bfloat16`), with or without `torch.`, or `tf32` for a matrix
        product of fp32 that may use it. Types without a rate of their own (integers, bool) count as fp32.
        """
        return self._roofline(flops, nbytes, dtype, 1.0)

    def attention_seconds(self, flops: float, nbytes: float, dtype: str, share: float = 1.0) -> float:
        """Like `seconds`, for fused attention, which keeps its scores on chip, at `share` of forward's rate."""
        efficiency = self.attention_efficiency or self.matmul_efficiency
        return self._roofline(flops, nbytes, dtype, share * efficiency / self.matmul_efficiency)

    def _roofline(self, flops: float, nbytes: float, dtype: str, share: float) -> float:
        rate = share * self._flops_per_second.get(dtype.removeprefix("torch."), self._flops_per_second["float32"])
        moving = nbytes / (self.memory_gb_per_s * 1e9 * self.memory_efficiency)
        return self.launch_seconds + max(flops / rate, moving)

    @cached_property
    def _flops_per_second(self) -> dict[str, float]:
        fp64 = self.fp64_tflops or self.fp32_tflops / 2
        int8 = self.int8_tops or self.bf16_tflops * 2
        rates = {
            "bfloat16": self.bf16_tflops,
            "float16": self.bf16_tflops,
            "tf32": self.tf32_tflops or self.fp32_tflops,
            "float32": self.fp32_tflops,
            "complex64": self.fp32_tflops,
            "float64": fp64,
            "complex128": fp64,
            "int8": int8,
            "uint8": int8,
            "float8_e4m3fn": self.fp8_tflops or int8,
            "float8_e5m2": self.fp8_tflops or int8,
        }
        reached = 1e12 * self.matmul_efficiency * self.clock_share
        return {dtype: rate * reached for dtype, rate in rates.items()}


_AZURE = "GEMM and memory: Azure AI-benchmarking-guide"

GPUS: dict[str, GPU] = {
    gpu.name: gpu
    for gpu in (
        *(
            GPU(
                f"v100-{memory}gb", 125.0, 15.7, memory, 900.0, "NVIDIA V100 data sheet (SXM2)",
                fp64_tflops=7.8, int8_tops=62.8,
                matmul_efficiency=0.9, memory_efficiency=0.85, host_link="pcie3", multiprocessors=80, power_watts=300.0,
                efficiency_source="GEMM: NVIDIA developer forum 79781; memory and launch assumed",
            )
            for memory in (16, 32)
        ),
        GPU(
            "t4", 65.0, 8.1, 16.0, 320.0, "NVIDIA T4 data sheet",
            fp64_tflops=0.25, int8_tops=130.0,
            matmul_efficiency=0.37, memory_efficiency=0.75, host_link="pcie3", multiprocessors=40, power_watts=70.0,
            efficiency_source="GEMM: NVIDIA developer forum 264462; memory and launch assumed",
        ),
        GPU(
            "l4", 121.0, 30.3, 24.0, 300.0, "NVIDIA L4 data sheet, half of its figures with sparsity",
            tf32_tflops=60.0, fp64_tflops=0.49, int8_tops=242.0,
            matmul_efficiency=0.5, memory_efficiency=0.8, multiprocessors=58, power_watts=72.0,
            efficiency_source="assumed: like the T4 it is held at 72 W",
        ),
        GPU(
            "a100-40gb", 312.0, 19.5, 40.0, 1555.0, "NVIDIA A100 data sheet (SXM4 40GB)",
            tf32_tflops=156.0, fp64_tflops=19.5, int8_tops=624.0,
            matmul_efficiency=0.82, attention_efficiency=0.6, memory_efficiency=0.81, launch_seconds=8e-6,
            power_watts=400.0,
            efficiency_source="as a100-80gb",
        ),
        GPU(
            "a100-80gb", 312.0, 19.5, 80.0, 2039.0, "NVIDIA A100 data sheet (SXM4 80GB)",
            tf32_tflops=156.0, fp64_tflops=19.5, int8_tops=624.0,
            matmul_efficiency=0.82, attention_efficiency=0.6, memory_efficiency=0.81, launch_seconds=8e-6,
            power_watts=400.0,
            efficiency_source=f"{_AZURE}; launch fitted to its GEMMs of 1024 and 2048",
        ),
        GPU(
            "h100-80gb", 989.0, 67.0, 80.0, 3350.0, "NVIDIA H100 data sheet (SXM5)",
            tf32_tflops=494.5, fp64_tflops=67.0, int8_tops=1979.0,
            matmul_efficiency=0.75, attention_efficiency=0.42, memory_efficiency=0.87,
            launch_seconds=5e-6, host_link="pcie5", multiprocessors=132, power_watts=700.0,
            efficiency_source=f"{_AZURE} (fp8: 0.70), stas00/ml-engineering (bf16, best shape: 0.80); launch fitted",
        ),
        GPU(
            "h200-141gb", 989.0, 67.0, 141.0, 4800.0, "NVIDIA H200 data sheet (SXM5)",
            tf32_tflops=494.5, fp64_tflops=67.0, int8_tops=1979.0,
            matmul_efficiency=0.75, attention_efficiency=0.42, memory_efficiency=0.85,
            launch_seconds=5e-6, host_link="pcie5", multiprocessors=132, power_watts=700.0,
            efficiency_source=f"{_AZURE} (fp8: 0.67); bf16 as h100-80gb",
        ),
        GPU(
            "b200-180gb", 2250.0, 75.0, 180.0, 7700.0, "NVIDIA DGX B200 data sheet / 8 (1,440 GB, 62 TB/s; HGX B200)",
            tf32_tflops=1125.0, fp64_tflops=37.0, int8_tops=4500.0,
            matmul_efficiency=0.77, memory_efficiency=0.85, launch_seconds=5e-6, host_link="pcie5", multiprocessors=148,
            power_watts=1000.0,
            efficiency_source="GEMM: stas00/ml-engineering (bf16); memory and launch assumed as h200-141gb",
        ),
        GPU(
            "rtx-4090", 165.2, 82.6, 24.0, 1008.0, "NVIDIA Ada GPU architecture paper, appendix A (fp32 accumulation)",
            tf32_tflops=82.6, fp64_tflops=1.29, int8_tops=660.6, fp8_tflops=330.3,
            matmul_efficiency=0.8, memory_efficiency=0.9, multiprocessors=128, power_watts=450.0,
        ),
    )
}  # fmt: skip
"""GPUs by name."""
