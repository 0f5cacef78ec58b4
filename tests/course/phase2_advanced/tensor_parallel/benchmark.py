"""Part of solutions.py: exercise 08's transformer block and loss compared with torch's DTensor, on 4 local ranks.

Work is forward and backward, measured from a barrier; its time is the slowest rank's, in the fastest repetition: others
waited for the machine. Both shard alike and all-reduce the same tensors: the same algorithm.
"""

from __future__ import annotations

from beside import Beside

from labkit import Job, catalogue, local

RANKS = 4
CLOSE = 1e-4
PROGRAM = """
import copy, time
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from labkit.exercises import tensor_parallel
from labkit.models.gpt import Block, GPTConfig
from labkit.course.phase2_advanced.tensor_parallel.given.parts import part_of

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))


def block():
    whole = Block(GPTConfig(heads=8, width=width))
    mine = tensor_parallel.TensorParallelTransformer.from_full(whole)
    plan = {"attention.qkv": ColwiseParallel(), "attention.out": RowwiseParallel()}
    plan |= {"mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}
    theirs = parallelize_module(whole, mesh, plan)
    x = torch.randn(4, 64, width)
    inputs = [x.clone().requires_grad_() for _ in range(2)]

    def step(module, x):
        module(x).square().mean().backward()
        return x.grad

    return lambda: step(mine, inputs[0]), lambda: step(theirs, inputs[1])


def loss():
    part, targets = part_of(vocab), torch.randint(0, vocab, (256,))
    logits = torch.randn(256, vocab)[:, part]
    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))

    def solution():
        tensor_parallel.vocab_parallel_cross_entropy(ours, targets, vocab).backward()
        return ours.grad

    def library():
        with loss_parallel():
            whole = DTensor.from_local(theirs, mesh, [Shard(1)])
            nn.functional.cross_entropy(whole, targets).backward()
        return theirs.grad

    return solution, library


def timed(work):
    dist.barrier()
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result.clone()


pair = {"block": block, "loss": loss}[work]()
first = [timed(side)[1] for side in pair]
off = ((first[0] - first[1]).abs().max() / first[1].abs().max()).item()
[off, [[timed(side)[0] for side in pair] for _ in range(repetitions)]]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure a block, and the cross entropy with a sharded vocabulary."""
    width, vocab = (64, 512) if quick else (256, 16384)
    return [
        _beside("block", f"block of width {width}, forward and backward", width, vocab, repetitions),
        _beside("loss", f"loss of 256 tokens of {vocab}, forward and backward", width, vocab, repetitions),
    ]


def _beside(work: str, told: str, width: int, vocab: int, repetitions: int) -> Beside:
    exercise = catalogue.find("tensor_parallel")
    given = {"work": work, "width": width, "vocab": vocab, "repetitions": repetitions}
    source = "".join(f"{name} = {value!r}\n" for name, value in given.items()) + PROGRAM
    job = Job(source=source, modules={exercise.name: exercise.source("solution")[0]}, timeout=300, trace=False)
    values = local(nproc_per_node=RANKS).run(job).raise_if_failed().values
    slowest = [[max(times) for times in zip(*step, strict=True)] for step in zip(*(v[1] for v in values), strict=True)]
    ours, theirs = (min(column) for column in zip(*slowest, strict=True))
    return Beside(told, ours, theirs, all(value[0] < CLOSE for value in values), same_algorithm=True)
