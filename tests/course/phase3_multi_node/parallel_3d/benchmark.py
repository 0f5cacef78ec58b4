"""Part of solutions.py: exercise 17's step compared with the same layout composed of torch's parts, on 4 local ranks.

Torch's: `init_device_mesh`, `parallelize_module` with DTensor for tensor parallelism, `Schedule1F1B` of
`torch.distributed.pipelining`, and FSDP2's `replicate` for the data axis. Both train equal blocks from equal weights
with equal batches, and the mean of squares as their loss: without embedding and head, which torch's parts do not tie.
Runs alternate; the time is the slowest rank's.
"""

from __future__ import annotations

import statistics

from beside import Beside

from labkit import Job, catalogue, local

RANKS = 4
PROGRAM = """
import time
import torch, torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from labkit.exercises import ddp, parallel_3d, pipeline_parallel, tensor_parallel
from labkit.models.gpt import Block, GPTConfig

dist.init_process_group("gloo")
torch.set_num_threads(1)
config = GPTConfig(layers=4, heads=4, width=width, context=length)
mesh = parallel_3d.build_mesh(dp, pp, tp)
place = mesh.coordinates()


def blocks():
    torch.manual_seed(0)
    every = [Block(config) for _ in range(4)]
    return every[place.pp * 4 // pp : (place.pp + 1) * 4 // pp]


def criterion(output, target):
    return (output - target).square().mean()


def mine():
    parts = [tensor_parallel.TensorParallelTransformer.from_full(one, mesh.groups["tp"]) for one in blocks()]
    module = ddp.DistributedDataParallel(nn.Sequential(*parts), mesh.groups["dp"], gradient_as_bucket_view=True)
    stage = parallel_3d.Stage(module, place.pp, pp)
    schedule = pipeline_parallel.get_pipeline_schedule("1f1b", pp, microbatches)
    pipeline = pipeline_parallel.PipelineParallel([stage], schedule, mesh.groups["pp"])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def step(batch, target):
        optimizer.zero_grad()
        stage.backwards_left = microbatches
        with module.no_sync():
            pipeline.forward_backward(batch, target, criterion)
        module.finish_gradient_synchronization()
        optimizer.step()

    return step, parts


def theirs():
    library = init_device_mesh("cpu", (pp, dp, tp), mesh_dim_names=("pp", "dp", "tp"))
    own, cut = blocks(), {
        "attention.qkv": ColwiseParallel(), "attention.out": RowwiseParallel(),
        "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel(),
    }
    for one in own:
        if tp > 1:
            parallelize_module(one, library["tp"], cut)
    module = nn.Sequential(*own)
    if dp > 1:
        module = replicate(module, mesh=library["dp"])
    stage = PipelineStage(module, place.pp, pp, torch.device("cpu"), group=library.get_group("pp"))
    schedule = Schedule1F1B(stage, microbatches, loss_fn=criterion)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def step(batch, target):
        optimizer.zero_grad()
        schedule.step(*([batch] if place.pp == 0 else []), target=target if place.pp == pp - 1 else None)
        optimizer.step()

    return step, own


def timed(step):
    dist.barrier()
    began = time.perf_counter()
    step(*batch)
    return time.perf_counter() - began


(my_step, my_parts), (their_step, their_parts) = mine(), theirs()
generator = torch.Generator().manual_seed(1)
batch = [torch.randn(2 * microbatches * dp, length, width, generator=generator).chunk(dp)[place.dp] for _ in range(2)]
pairs = [(timed(my_step), timed(their_step)) for _ in range(repetitions + 1)][1:]
seconds = [[pair[which] for pair in pairs] for which in (0, 1)]


def whole(parameter):
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


equal = all(
    torch.allclose(a, whole(b), atol=1e-4)
    for one, other in zip(my_parts, their_parts)
    for a, b in zip(one.to_full().parameters(), other.parameters())
)
[seconds, equal]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure a step with tensor parallelism in each of two stages, and one with two replicas of each."""
    exercise = catalogue.find("parallel_3d")
    width, length = (32, 16) if quick else (256, 128)
    rows = []
    for dp, pp, tp in ((1, 2, 2), (2, 2, 1)):
        head = f"dp, pp, tp, width, length, repetitions, microbatches = {dp, pp, tp, width, length, repetitions, 4}\n"
        modules = {one.name: one.source("solution")[0] for one in (*exercise.builds_on, exercise)}
        run = local(nproc_per_node=RANKS).run(Job(source=head + PROGRAM, modules=modules, trace=False))
        values = run.raise_if_failed().values
        mine, theirs = (max(statistics.median(value[0][who]) for value in values) for who in (0, 1))
        equal = all(value[1] for value in values)
        work = f"step on dp, pp, tp = {dp}, {pp}, {tp}, width {width}; DTensor, pipelining and FSDP2"
        rows.append(Beside(work, mine, theirs, equal, same_algorithm=True))
    return rows
