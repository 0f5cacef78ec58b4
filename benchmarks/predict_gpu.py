"""Training steps of GPTs on this machine's GPU, beside what is predicted for it: time, memory, and products' rates.

    python benchmarks/predict_gpu.py [--cluster dgx-h100] [--only gpt2-small ...] [--compiled] [--json FILE]

Needs one GPU. Models are labkit.models' GPT in eager torch, or compiled; parameters are fp32, products bf16 by
autocast, AdamW is fused, attention is torch's. `--cluster` is a preset, or a file of `labkit calibrate`. A
measured time is the median of single steps. Nothing of a prediction was fitted to what this measures.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from labkit.hardware import Topology, topology
from labkit.models import GPT, GPTConfig
from labkit.predict import Plan, Transformer, predict

WARMUP, STEPS = 4, 12


@dataclass(frozen=True)
class Case:
    """A GPT, and the samples of one step."""

    name: str
    layers: int
    heads: int
    width: int
    batch: int
    context: int = 1024

    @property
    def config(self) -> GPTConfig:
        return GPTConfig(self.layers, self.heads, self.width, vocab=50_304, context=self.context)


CASES = (
    Case("gpt2-small", 12, 12, 768, 4),
    Case("gpt2-small", 12, 12, 768, 16),
    Case("gpt2-medium", 24, 16, 1024, 8),
    Case("gpt2-large", 36, 20, 1280, 8),
    Case("gpt-1.3b", 24, 16, 2048, 4),
    Case("gpt-1.3b, long", 24, 16, 2048, 1, context=4096),
)


@dataclass(frozen=True)
class Measured:
    """Time and memory of one step, as measured."""

    seconds: float
    fastest: float
    memory: int
    """Peak bytes of tensors on the GPU."""


def measure(case: Case, compiled: bool) -> Measured:
    """Train on random tokens, and time single steps by the GPU's own clock."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model: torch.nn.Module = GPT(case.config)
        tokens = torch.randint(case.config.vocab, (case.batch, case.context + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    called = torch.compile(model) if compiled else model

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = called(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARMUP):
        step()
    torch.cuda.reset_peak_memory_stats()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    times = [begin.elapsed_time(end) / 1e3 for begin, end in pairwise(marks)]
    return Measured(statistics.median(times), min(times), torch.cuda.max_memory_allocated())


def predicted(case: Case, cluster: Topology, compiled: bool) -> tuple[float, float]:
    """Return the predicted seconds of a step, and bytes on the GPU."""
    model = Transformer(case.name, case.layers, case.width, case.heads, case.config.vocab, case.context)
    fusion = "compiled" if compiled else "none"
    plan = Plan(
        batch=case.batch, microbatch=case.batch, fusion=fusion, gradients="fp32", loss="eager", attention="flash2"
    )  # fmt: skip
    prediction = predict(model, plan, cluster)
    return prediction.step_seconds, prediction.memory.total


def products() -> dict[str, float]:
    """Rate of one large product by dtype, in TFLOP/s: a median of single products."""
    size, rates = 8192, {}
    for name in ("bfloat16", "float8_e4m3fn"):
        left, right = (torch.randn(size, size, device="cuda").to(getattr(torch, name)) for _ in range(2))
        one = torch.ones((), device="cuda")

        def product(left=left, right=right, one=one, name=name):  # type: ignore[no-untyped-def]
            if name == "bfloat16":
                return left @ right
            return torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

        times = []
        for _ in range(30):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            product()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        rates[name] = 2 * size**3 / statistics.median(times[5:]) / 1e12
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="dgx-h100", help="a preset, or a file of `labkit calibrate`")
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument("--compiled", action="store_true", help="compile the models")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    cluster = topology(arguments.cluster, nnodes=1, nproc_per_node=1)
    table = Table(title=f"{torch.cuda.get_device_name()}, torch {torch.__version__}; predicted for {cluster.gpu.name}")
    for head in ("model", "batch", "measured s", "predicted s", "ratio", "measured GB", "predicted GB", "ratio"):
        table.add_column(head, justify="left" if head == "model" else "right")
    rows = []
    for case in CASES:
        if arguments.only and case.name not in arguments.only:
            continue
        seen = measure(case, arguments.compiled)
        gc.collect()  # autograd's cycles hold the model
        seconds, memory = predicted(case, cluster, arguments.compiled)
        rows.append({**asdict(case), **asdict(seen), "predicted_seconds": seconds, "predicted_memory": memory})
        table.add_row(
            case.name, str(case.batch), f"{seen.seconds:.4f}", f"{seconds:.4f}", f"{seconds / seen.seconds:.2f}",
            f"{seen.memory / 1e9:.2f}", f"{memory / 1e9:.2f}", f"{memory / seen.memory:.2f}",
        )  # fmt: skip
    console = Console(width=120)
    console.print(table)
    rates = products()
    console.print(", ".join(f"{name} products: {rate:.0f} TFLOP/s" for name, rate in rates.items()))
    if arguments.json:
        device = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cluster": arguments.cluster}
        arguments.json.write_text(json.dumps({**device, "products": rates, "steps": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
