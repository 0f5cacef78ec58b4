"""Digests of traces of several programs, to show that a change of the lab leaves them equal bit for bit.

A digest covers every event and every memory sample of every rank, on real and on fake tensors. Save the digests before
the change, and compare after it:

    python benchmarks/same_traces.py --save before.json
    python benchmarks/same_traces.py --compare before.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

from virtual import DDP, FSDP, HEAD, LAYOUT, RING, WHOLE

from labkit import Job, virtual
from labkit.clusters.forkserver.client import shared
from labkit.trace import Trace

MIXED = """
import torch.nn as nn
from labkit.models import GPT, GPTConfig
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint_sequential
config = GPTConfig({config})
mesh = dist.device_mesh.init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("replicate", "shard"))
model = GPT(config).to(torch.bfloat16)
for block in model.blocks:
    fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
fully_shard(model, mesh=mesh, reshard_after_forward=False)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for step in range(2):
    tokens = torch.randint(config.vocab, (2, config.context))
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
OPTIMIZERS = """
import torch.nn as nn
torch.manual_seed(rank)
for options in ({{"fused": True}}, {{"foreach": True}}, {{"amsgrad": True}}):
    layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(64), nn.Linear(64, 8))
    model = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    for step in range(3):
        x = torch.randn(16 + step, 32)
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=step > 0)
    with torch.no_grad():
        half = nn.Linear(32, 8).to(torch.float16)(x.half())
        chunks = half.chunk(4)
        pieces = torch.cat([chunks[0], chunks[2]]).t().contiguous().as_strided((2, 2), (1, 3), 1 + step)
        pieces.add_(1.5).sum()
"""
CONVOLUTION = """
import torch.nn as nn
layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 15 * 15, 10)
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = nn.functional.cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.randint(10, (4,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SEQUENCE = """
from labkit.models import GPT, GPTConfig
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module
config = GPTConfig({config})
mesh = dist.device_mesh.init_device_mesh("cpu", (n,))
model = GPT(config)
for block in model.blocks:
    parallelize_module(block, mesh, {{
        "mlp": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=False),
        "mlp.up": ColwiseParallel(input_layouts=Shard(1)), "mlp.down": RowwiseParallel(),
    }})
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(2):
    tokens = torch.randint(config.vocab, (1, config.context))
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SMALL = "4, 8, 64, 512, 64"
PROGRAMS = {
    "ring": (RING, 4),
    "DDP": (DDP, 4),
    "DDP, convolution": (CONVOLUTION, 2),
    "DDP, optimizers": (OPTIMIZERS, 2),
    "FSDP2": (FSDP, 4),
    "HSDP2, mixed precision": (MIXED, 4),
    "TP, sequence": (SEQUENCE, 2),
    "TP x PP x DP": (LAYOUT, 16),
}
"""Programs by name, each with its number of ranks."""


def digest(trace: Trace) -> str:
    """Return a hash of all events and memory samples; times enter with all their bits."""
    rows = [*map(tuple, trace.events), *((s.rank, s.time, s.category.value, s.nbytes) for s in trace.memory)]
    peaks = [trace.peak_by_category(rank) for rank in range(trace.world_size)]
    return hashlib.sha256(repr((rows, peaks)).encode()).hexdigest()


def digests() -> dict[str, str]:
    by_name = {}
    for name, (program, ranks) in PROGRAMS.items():
        for fake in (False, True):
            cluster = virtual(nnodes=max(1, ranks // 8), nproc_per_node=min(8, ranks), fake=fake)
            source = HEAD + (
                program.format(config=SMALL, layout=(2, 4), microbatches=4, built=WHOLE)
                if "{config}" in program or "{{" in program
                else program
            )
            by_name[f"{name}, {'fake' if fake else 'real'}"] = digest(
                cluster.run(Job(source=source)).raise_if_failed().trace
            )
    return by_name


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--save", type=Path, help="write the digests to this file")
    parser.add_argument("--compare", type=Path, help="exit with 1 unless they equal those of this file")
    options = parser.parse_args()
    current = digests()
    shared().close()
    if options.save:
        options.save.write_text(json.dumps(current, indent=2))
    if options.compare:
        before = json.loads(options.compare.read_text())
        different = [name for name in current if current[name] != before.get(name)]
        print(
            f"{len(current) - len(different)} traces are equal", *(f"differs: {name}" for name in different), sep="\n"
        )
        raise SystemExit(bool(different))


if __name__ == "__main__":
    main()
