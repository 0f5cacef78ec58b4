"""A training that survives the loss of any pod: data-parallel, with its whole state on each pod's volume.

Your own program takes its place (configMapGenerator in the kustomization); three things make it survive:

- It saves often, to a file that appears whole or not at all.
- At its start it takes the newest checkpoint that any rank has. A pod with an empty volume gets it from another one.
- Batches depend on the step alone, not on the number of ranks: losses go on as if nothing had happened.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit.course.phase4_production.monitoring.given import PrometheusSink, StepRecord

GLOBAL_BATCH = 256
METRICS_PORT = 9400  # and the next one for each further rank of the pod


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--seconds-per-step", type=float, default=0.0, help="at least; to watch it")
    parser.add_argument("--metrics-port", type=int, default=METRICS_PORT, help="of local rank 0; 0: any free one")
    parser.add_argument("--metrics-address", default="127.0.0.1", help="0.0.0.0: Prometheus is on another machine")
    options = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    metrics_port = options.metrics_port and options.metrics_port + local_rank
    sink = PrometheusSink(rank, metrics_port, address=options.metrics_address)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = resume(options.checkpoints, model, optimizer, device)
    if rank == 0:
        print(f"training from step {first} on {world_size} ranks", flush=True)
    trained = DistributedDataParallel(model, device_ids=[local_rank] if device.type == "cuda" else None)

    for step in range(first, options.steps):
        began = time.perf_counter()
        inputs, targets = batch(step, rank, world_size, device)
        has_input = time.perf_counter()
        # DDP averages over ranks: with this factor it is the mean over the global batch, also in unequal parts
        loss = (trained(inputs) - targets).square().sum() * world_size / GLOBAL_BATCH
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if local_rank == 0 and (step + 1) % options.save_every == 0:
            save(options.checkpoints, step + 1, model, optimizer)
        time.sleep(max(0.0, began + options.seconds_per_step - time.perf_counter()))
        waits = time.perf_counter()
        dist.all_reduce(mean := loss.detach() / world_size)
        mean_loss = float(mean)
        ends = time.perf_counter()
        sink.step(
            StepRecord(
                time=time.time(), rank=rank, step=step, loss=mean_loss, samples_per_second=len(inputs) / (ends - began),
                step_seconds=ends - began, compute_seconds=waits - has_input, communication_seconds=ends - waits,
                input_seconds=has_input - began,
                memory_bytes=torch.cuda.memory_allocated() if device.type == "cuda" else 0,
            )
        )  # fmt: skip
        if rank == 0:
            print(f"step {step + 1} loss {mean_loss:.6f}", flush=True)
    dist.destroy_process_group()
    if rank == 0:
        print("finished", flush=True)


def batch(step: int, rank: int, world_size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's samples of the step's global batch: inputs (n, 16) and targets (n, 1)."""
    samples = torch.Generator().manual_seed(step)
    inputs = torch.randn(GLOBAL_BATCH, 16, generator=samples)[rank::world_size].to(device)
    return inputs, inputs[:, :4].prod(dim=1, keepdim=True) + inputs[:, 4:5]


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace the checkpoint of this node: a crash at any moment leaves the earlier or the later one.

    Pods have a volume each; on Slurm nodes share the folder, and each replaces the checkpoint by the same one.
    """
    unfinished = folder / f"unfinished-{dist.get_rank()}.pt"
    with unfinished.open("wb") as file:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(folder / "checkpoint.pt")


def resume(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Take the newest checkpoint of all ranks into model and optimizer; return how many steps it has."""
    file = folder / "checkpoint.pt"
    mine = torch.load(file, map_location=device, weights_only=True) if file.exists() else None
    steps: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(steps, mine["step"] if mine else 0)
    newest = max(range(len(steps)), key=steps.__getitem__)
    if steps[newest] == 0:
        return 0
    found = [mine]
    dist.broadcast_object_list(found, src=newest, device=device)
    assert found[0] is not None
    model.load_state_dict(found[0]["model"])
    optimizer.load_state_dict(found[0]["optimizer"])
    return steps[newest]


if __name__ == "__main__":
    main()
