"""The solutions train on a real GPU: with NCCL on one rank, with gloo on two that share it, as one process does."""

from __future__ import annotations

import pytest
import torch
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, local

MODULES = {exercise.name: exercise.source("solution")[0] for exercise in catalogue.all_exercises()}

HEAD = """
import copy, torch, torch.distributed as dist
from torch import nn
dist.init_process_group(BACKEND)
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(4)), nn.Linear(32, 8)).to(DEVICE)
inputs, targets = torch.randn(6, 4, 32, device=DEVICE), torch.randn(6, 4, 8, device=DEVICE)
mine = slice(rank * 4 // ranks, (rank + 1) * 4 // ranks)
loss_of = nn.functional.mse_loss

def one_process(steps=6):
    model = copy.deepcopy(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for x, y in zip(inputs[:steps], targets):
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()
    return model(inputs[0]).detach()

def close(model, tolerance=1e-4):
    torch.testing.assert_close(model(inputs[0]).detach().float(), one_process(), rtol=tolerance, atol=tolerance)
"""

PROGRAMS = {
    "ddp": """
from labkit.exercises import ddp
model = ddp.DistributedDataParallel(copy.deepcopy(net), bucket_cap_mb=0.005)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for x, y in zip(inputs, targets):
    optimizer.zero_grad()
    loss_of(model(x[mine]), y[mine]).backward()
    optimizer.step()
close(model)
""",
    "zero, stage 1": """
from labkit.exercises import zero
model = copy.deepcopy(net)
optimizer = zero.ZeroOptimizer(model.parameters(), torch.optim.AdamW, 1, lr=0.01)
for x, y in zip(inputs, targets):
    optimizer.zero_grad()
    loss_of(model(x[mine]), y[mine]).backward()
    optimizer.step()
close(model)
""",
    "zero, stage 2": """
from labkit.exercises import zero
model = copy.deepcopy(net)
optimizer = zero.ZeroOptimizer(model.parameters(), torch.optim.AdamW, 2, lr=0.01)
for x, y in zip(inputs, targets):
    optimizer.zero_grad()
    loss_of(model(x[mine]), y[mine]).backward()
    optimizer.step()
close(model)
""",
    "zero, stage 3": """
from labkit.exercises import zero
for options in ({}, {"cpu_offload": True}):
    model = zero.FullyShardedDataParallel(copy.deepcopy(net), **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for x, y in zip(inputs, targets):
        optimizer.zero_grad()
        loss_of(model(x[mine]), y[mine]).backward()
        optimizer.step()
    close(model)
""",
    "gradient accumulation": """
from labkit.exercises import gradient_accumulation
model = copy.deepcopy(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
accumulator = gradient_accumulation.GradientAccumulator(model, optimizer, 2)
for x, y in zip(inputs, targets):
    for part in (x[mine][:1], y[mine][:1]), (x[mine][1:], y[mine][1:]):
        accumulator.backward(loss_of(model(part[0]), part[1]), samples=len(part[0]))
        accumulator.step()
close(model)
""",
    "mixed precision": """
from labkit.exercises import mixed_precision
for dtype, scaler in (torch.bfloat16, None), (torch.float16, mixed_precision.DynamicLossScaler()):
    model = copy.deepcopy(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for x, y in zip(inputs, targets):
        result = mixed_precision.autocast_step(model, optimizer, loss_of, (x[mine], y[mine]), scaler, dtype=dtype)
    assert torch.isfinite(result.loss)
    close(model, 0.1)
""",
    "activation checkpointing": """
from labkit.exercises import activation_checkpointing
def by_checkpoints(model, x):
    return activation_checkpointing.checkpoint_sequential(model, 3, x)
def offloaded(model, x):
    with activation_checkpointing.offload_activations():
        return model(x)
for forward in by_checkpoints, offloaded:
    model = copy.deepcopy(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for x, y in zip(inputs, targets):
        optimizer.zero_grad()
        loss_of(forward(model, x), y).backward()
        optimizer.step()
    close(model)
""",
    "tensor parallelism": """
from labkit.exercises import tensor_parallel
from labkit.models.gpt import Block, GPTConfig
whole = Block(GPTConfig(heads=4, width=32)).to(DEVICE)
x = torch.randn(2, 5, 32, device=DEVICE)
block = tensor_parallel.TensorParallelTransformer.from_full(whole)
torch.testing.assert_close(block(x), whole(x), rtol=1e-4, atol=1e-4)
for module in whole, block:
    module(x).square().sum().backward()
torch.testing.assert_close(block.norm_mlp.weight.grad, whole.norm_mlp.weight.grad, rtol=1e-3, atol=1e-3)
""",
    "loading data": """
from labkit.exercises import data_loader
data = torch.utils.data.TensorDataset(torch.arange(40.0).reshape(20, 2))
sampler = data_loader.ShardedSampler(len(data), num_replicas=ranks, rank=rank)
loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler, pin_memory=DEVICE == "cuda")
batches = [batch for (batch,) in data_loader.PrefetchLoader(loader, DEVICE)]
assert {batch.device.type for batch in batches} == {DEVICE}
together = torch.cat(batches).sum()
dist.all_reduce(together)
assert together == sum(range(40))
""",
    "checkpoints": """
import tempfile
from labkit.exercises import checkpointing
folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder, device=torch.device(DEVICE))
torch.manual_seed(7)
model = copy.deepcopy(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
saved = checkpointing.DistributedCheckpointer(folder[0])
for step in range(3):
    optimizer.zero_grad()
    loss_of(nn.functional.dropout(model(inputs[step]), 0.3), targets[step]).backward()
    optimizer.step()
saved.save_checkpoint(3, {"model": model, "optimizer": optimizer})
drawn = torch.rand(3, device=DEVICE), model(inputs[0]).detach()
again = copy.deepcopy(net)
resumed = torch.optim.AdamW(again.parameters(), lr=0.5)
torch.rand(5, device=DEVICE)
checkpointing.DistributedCheckpointer(folder[0]).load_latest_checkpoint({"model": again, "optimizer": resumed})
assert resumed.param_groups[0]["lr"] == 0.01
torch.testing.assert_close((torch.rand(3, device=DEVICE), again(inputs[0]).detach()), drawn, rtol=0, atol=0)
""",
    "trainer": """
from labkit.exercises import trainer
for reduction in "flat", "per_parameter":
    model = copy.deepcopy(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    own = trainer.DataParallelTrainer(model, optimizer, loss_of, reduction=reduction)
    for x, y in zip(inputs, targets):
        own.train_step((x[mine], y[mine]))
    close(model)
""",
    "gradient compression": """
from labkit.exercises import ddp, gradient_compression as g
for compressor in g.TopK(0.1), g.RandomK(0.1, seed=0), g.OneBit(), g.Quantized(8), g.PowerSGD(2):
    model = ddp.DistributedDataParallel(copy.deepcopy(net), bucket_cap_mb=0.005)
    model.register_comm_hook(None, g.compression_hook(compressor, model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for x, y in zip(inputs, targets):
        optimizer.zero_grad()
        loss_of(model(x[mine]), y[mine]).backward()
        optimizer.step()
    close(model, 0.5)
""",
    "local SGD": """
from labkit.exercises import local_sgd
model = copy.deepcopy(net)
own = local_sgd.LocalSGD(torch.optim.AdamW(model.parameters(), lr=0.01), period=1)
for x, y in zip(inputs, targets):
    model.zero_grad()
    loss_of(model(x[mine]), y[mine]).backward()
    own.step(len(x[mine]))
close(model)
model = copy.deepcopy(net)
outer = lambda parameters: torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)
own = local_sgd.DiLoCo(torch.optim.AdamW(model.parameters(), lr=0.01), outer, period=3)
for x, y in zip(inputs, targets):
    model.zero_grad()
    loss_of(model(x[mine]), y[mine]).backward()
    own.step(len(x[mine]))
close(model, 0.5)
""",
    "monitoring": """
from labkit.exercises import monitoring
monitor = monitoring.DistributedTrainingMonitor(rank, ranks, interval=2, device=DEVICE)
model = copy.deepcopy(net)
loss_of(model(inputs[0]), targets[0]).backward()
assert monitor.check_gradient_sync(model) == []
for step in range(1, 5):
    with monitor.timed("input"):
        x = inputs[step]
    assert monitor.log_step_metrics(step, loss_of(model(x), targets[step]).detach(), 4) == []
assert len(monitor.history[-1]) == ranks
with torch.no_grad():
    model[0][0].weight[0, 0] += rank
assert bool(monitor.check_gradient_sync(model)) == (ranks > 1)
""",
    "images": """
from labkit.exercises import image_classification
for strategy, precision in ("ddp", "bf16"), ("fsdp", "no"), ("fsdp", "bf16"):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
    trainer = image_classification.DistributedTrainer(model, strategy=strategy, mixed_precision=precision)
    for _ in range(3):
        metrics = trainer.train_step((torch.randn(8, 3, 16, 16), torch.randint(10, (8,))))
    assert 0 < float(metrics.loss) < 10 and metrics.compute_time > 0
    assert trainer.get_performance_metrics()["samples_per_second_per_gpu"] > 0
""",
}

NCCL_ALONE = {
    "collectives": """
from labkit.exercises import collectives, hierarchical_allreduce, ring_allreduce
x = torch.arange(7.0, device=DEVICE)
for all_reduce in (
    collectives.all_reduce_naive, collectives.all_reduce_tree, collectives.all_reduce_recursive_doubling,
    ring_allreduce.ring_all_reduce,
):
    assert all_reduce(x.clone()).equal(x)
assert collectives.all_gather(x).equal(x[None])
assert collectives.broadcast(x.clone(), 0).equal(x)
groups = hierarchical_allreduce.build_node_groups(ranks)
assert hierarchical_allreduce.hierarchical_all_reduce(x.clone(), *groups).equal(x)
""",
    "pipeline parallelism": """
from labkit.exercises import pipeline_parallel as p
model = copy.deepcopy(net)
stages = [p.PipelineStage(part, number, 2) for number, part in enumerate((model[:2], model[2:]))]
pipeline = p.PipelineParallel(stages, p.get_pipeline_schedule("interleaved", 1, 2, chunks=2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for x, y in zip(inputs, targets):
    optimizer.zero_grad()
    pipeline.forward_backward(x, y, loss_of)
    optimizer.step()
close(model)
""",
    "context parallelism": """
from labkit.exercises import context_parallel
q, k, v = (torch.randn(2, heads, 16, 8, device=DEVICE, requires_grad=True) for heads in (4, 2, 2))
whole = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
expected = torch.autograd.grad(whole.square().sum(), (q, k, v))
for attention in (
    context_parallel.ring_attention,
    context_parallel.gather_attention,
    context_parallel.ulysses_attention,
):
    out = attention(q, k, v)
    torch.testing.assert_close(out, whole, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), (q, k, v)), expected, rtol=1e-3, atol=1e-3)
""",
    "expert parallelism": """
from labkit.exercises import expert_parallel
layer = expert_parallel.ExpertParallelMoE(32, 64, num_experts=4, top_k=2).to(DEVICE)
x = torch.randn(3, 5, 32, device=DEVICE, requires_grad=True)
(layer(x).square().mean() + 0.01 * layer.routing.loss).backward()
assert x.grad.abs().sum() > 0 and layer(x[:, :0]).shape == (3, 0, 32)
expert_parallel.average_gradients(layer)
assert all(torch.isfinite(one.grad).all() for one in layer.parameters() if one.grad is not None)
""",
}
"""Programs whose messages from rank to rank gloo does not send between GPUs."""

needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_a_gpu
@pytest.mark.parametrize(("backend", "ranks"), [("nccl", 1), ("gloo", 2)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_solutions_train_on_a_gpu_as_one_process_does(program: str, backend: str, ranks: int) -> None:
    run(PROGRAMS[program], backend, ranks)


@needs_a_gpu
@pytest.mark.parametrize("program", NCCL_ALONE)
def test_solutions_send_through_nccl(program: str) -> None:
    run(NCCL_ALONE[program], "nccl", 1)


def run(program: str, backend: str, ranks: int) -> None:
    given = f"BACKEND, DEVICE = {backend!r}, 'cuda'\n"
    job = Job(source=given + HEAD + program, modules=MODULES, timeout=BROKEN_SECONDS)
    local(ranks).run(job).raise_if_failed()
