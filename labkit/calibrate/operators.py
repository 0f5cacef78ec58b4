"""Timings on all ranks at once, as in training: products, copies, small operators, an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.calibrate.machine import Machine
from labkit.calibrate.timing import Sample, on_machine, progress, timed

SQUARES = {"cpu": (64, 128, 256, 512), "cuda": (512, 1024, 2048, 4096, 8192)}
QUICK_SQUARES = {"cpu": (64, 128, 256), "cuda": (1024, 2048, 4096)}
DTYPES = {"cpu": ("float32", "bfloat16", "float64"), "cuda": ("bfloat16", "float32", "tf32", "float64")}
QUICK_DTYPES = {"cpu": ("float32", "bfloat16"), "cuda": ("bfloat16", "float32", "tf32")}
COPIES = {"cpu": (4, 8, 16), "cuda": (64, 128, 256, 1024)}
"""MB; larger copies take longer than one clock reading should."""
LAYERS, WIDTH = (4, 8, 32), 16
"""Sizes of networks so small that all their time is overhead. Each layer's is in the slope of time over layers; the
start of a backward pass, which a network pays once, is not."""


def steps(machine: Machine, quick: bool) -> int:
    """Number of samples that `measure` takes, for a progress bar."""
    dtypes, squares, copies = _sizes(machine, quick)
    return len(dtypes) * len(squares) + len(copies) + len(LAYERS) + 3


def measure(machine: Machine, quick: bool) -> list[dict[str, Any]]:
    """Take samples, as plain data, on one rank while the others do the same. Raises torch.OutOfMemoryError."""
    device, each = on_machine(machine), 0.03 if quick else 0.3
    samples: list[Sample] = []

    def take(what: str, label: str, size: float, call: Callable[[], object], dtype: str = "") -> None:
        dist.barrier()
        samples.append(Sample(what, label, size, *timed(call, each), dtype=dtype))
        progress(f"{what} {dtype}: {label}")

    dtypes, squares, copies = _sizes(machine, quick)
    for dtype in dtypes:
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        for n in squares:
            left, right = (torch.ones(n, n, device=device, dtype=_dtype(dtype)) for _ in range(2))
            out = torch.empty_like(left)
            take("product", f"n = {n}", 2.0 * n**3, lambda: torch.mm(left, right, out=out), dtype)  # noqa: B023  # called at once
    torch.set_float32_matmul_precision("highest")
    for mb in copies:
        source = torch.ones(mb * 250_000, device=device)
        target = torch.empty_like(source)
        take("copy", f"{mb} MB", 2.0 * mb * 1e6, lambda: target.copy_(source))  # noqa: B023
    _small(device, take)
    return [sample.to_plain() for sample in samples]


def _small(device: torch.device, take: Callable[..., None]) -> None:
    tiny = torch.ones(WIDTH, WIDTH, device=device)
    take("launch", "one operator", 0, lambda: torch.relu(tiny))
    for count in LAYERS:
        parts = (part for _ in range(count) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))
        network = nn.Sequential(*parts).to(device)

        def forward_and_backward(network: nn.Module = network) -> None:
            network.zero_grad(set_to_none=True)
            network(tiny).sum().backward()

        take("layer", f"{count} tiny ones", count, forward_and_backward)
    values = torch.ones(1_000_000, device=device)
    out = torch.empty_like(values)
    take("pass", "relu, 4 MB", 2.0 * values.nbytes, lambda: torch.clamp_min(values, 0, out=out))
    parameter = nn.Parameter(torch.ones(1_000_000, device=device))
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.Adam([parameter], fused=True)
    take("optimizer", "Adam, 1e6", parameter.numel(), optimizer.step)


def _sizes(machine: Machine, quick: bool) -> tuple[Sequence[str], Sequence[int], Sequence[int]]:
    on = machine.device
    # the two tensors of a copy take at most a third of the free memory
    copies = [mb for mb in COPIES[on] if 6e6 * mb <= machine.free_bytes] or COPIES[on][:2]
    if quick:
        return QUICK_DTYPES[on], QUICK_SQUARES[on], (copies[0], copies[-1])
    return DTYPES[on], SQUARES[on], copies


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, "float32" if name == "tf32" else name)
    assert isinstance(dtype, torch.dtype)
    return dtype
