"""Programs that hold a rule against virtual time: they run on virtual ranks, whose clock is modelled."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def come_late(late: float) -> None:
    dist.init_process_group()
    time.sleep(1.0 + late * (dist.get_rank() == 2))
    dist.barrier()


def one_message(nbytes: int) -> None:
    dist.init_process_group()
    tensor = torch.empty(nbytes, dtype=torch.uint8)
    dist.send(tensor, 1) if dist.get_rank() == 0 else dist.recv(tensor, 0)


def train_step(compute: float, microbatches: int, nbytes: int) -> float:
    dist.init_process_group()
    dist.barrier()
    began = time.perf_counter()
    for _ in range(microbatches):
        time.sleep(compute)
    if dist.get_world_size() > 1:
        dist.all_reduce(torch.empty(nbytes, dtype=torch.uint8))
    return time.perf_counter() - began


def deep(checkpointing: ModuleType, layers: int, segments: int) -> None:
    dist.init_process_group()
    model = [nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(layers)]
    checkpointing.checkpoint_sequential(model, segments, torch.zeros(32_768, 256)).sum().backward()


def block_step(tensor_parallel: ModuleType, width: int, tokens: int) -> None:
    dist.init_process_group()
    torch.set_default_dtype(torch.bfloat16)
    block = tensor_parallel.TensorParallelTransformer(width, 32)
    block(torch.zeros(1, tokens, width, requires_grad=True)).sum().backward()


def attention(context_parallel: ModuleType, kind: str, heads: int, kv_heads: int) -> None:
    """Attend to 4 tokens of each rank, 8 float32 numbers for each head."""
    dist.init_process_group()
    q, k, v = (torch.zeros(1, count, 4, 8) for count in (heads, kv_heads, kv_heads))
    getattr(context_parallel, f"{kind}_attention")(q, k, v)


def pipeline_step(pipelines: ModuleType, name: str, microbatches: int) -> tuple[float, float, float]:
    """Return when the rank's first action begins, when its last one ends, and the seconds of all."""
    dist.init_process_group()
    rank, ranks, spans = dist.get_rank(), dist.get_world_size(), []

    class Timed(pipelines.PipelineStage):  # type: ignore[misc, name-defined]
        def forward(self, *given: Any, **named: Any) -> Any:
            return self.timed(super().forward, given, named)

        def backward(self, *given: Any, **named: Any) -> Any:
            return self.timed(super().backward, given, named)

        def timed(self, action: Callable[..., Any], given: Any, named: Any) -> Any:
            began = time.perf_counter()
            result = action(*given, **named)
            spans.append((began, time.perf_counter()))
            return result

    layers = nn.Sequential(*(nn.Linear(128, 128) for _ in range(16)))
    pipeline = pipelines.PipelineParallel(
        [Timed(layers, rank, ranks)], pipelines.get_pipeline_schedule(name, ranks, microbatches)
    )
    batch = torch.ones(microbatches * 16, 128)
    dist.barrier()
    pipeline.forward_backward(batch, batch, nn.functional.mse_loss)
    return spans[0][0], spans[-1][1], sum(end - began for began, end in spans)


def around_the_ring(ring: ModuleType, nbytes: int) -> None:
    dist.init_process_group()
    ring.ring_all_reduce(torch.ones(nbytes // 4))


def pull_and_push(servers: ModuleType, num_servers: int, nbytes: int) -> tuple[float, float]:
    """Return when a worker begins its first pull and has its values; it pushes one second later, as all others do."""
    dist.init_process_group()
    weight = torch.zeros(nbytes // 4, requires_grad=True)
    if dist.get_rank() < num_servers:
        servers.ParameterServer([weight], lambda weights: torch.optim.SGD(weights, lr=0.1), num_servers).serve()
        return 0.0, 0.0
    weight.grad = torch.ones_like(weight)
    with servers.Worker([weight], num_servers) as worker:
        began = time.perf_counter()
        worker.pull()
        ended = time.perf_counter()
        time.sleep(1.0 - ended)
        worker.push()
    return began, ended
