"""Part of solutions.py: exercise 13's compressors compared with torch's, on 2 local ranks through torch's DDP.

A backward pass of one linear layer is measured from a barrier, with a hook of each kind: the slowest rank, in the
fastest repetition. PowerSGD is beside torch's PowerSGD hook, which keeps the mean's error; the others are beside
torch's hook for float16, which halves the bytes. Encoding and decoding of one message are timed apart. With each the
bytes of a rank's message are given; float16's are a half of the gradient's. Values are equal if the first step leaves
the mean of what the ranks' messages say, each decoded apart; PowerSGD's if it leaves the projection of the mean
gradient on four directions, as near to it as torch's is.
"""

from __future__ import annotations

from beside import Beside

from labkit import Job, catalogue, local

RANKS = 2
PROGRAM = """
import time
import torch, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from labkit.exercises import gradient_compression as gc

dist.init_process_group("gloo")
torch.set_num_threads(1)
compressor = eval("gc." + kind)


def model_with(state, hook):
    torch.manual_seed(0)
    parallel = DistributedDataParallel(torch.nn.Linear(width, width, bias=False))
    parallel.register_comm_hook(state, hook)
    return parallel


def library():
    if "PowerSGD" not in kind:
        return model_with(None, default_hooks.fp16_compress_hook)
    state = powerSGD_hook.PowerSGDState(None, compressor.rank, start_powerSGD_iter=2)
    state.iter = 2
    return model_with(state, powerSGD_hook.powerSGD_hook)


def timed(function):
    dist.barrier()
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


mine, theirs = model_with(None, gc.compression_hook(compressor)), library()
inputs = torch.randn(8, width, generator=torch.Generator().manual_seed(dist.get_rank()))
steps = [lambda model=model: model(inputs).square().sum().backward() for model in (mine, theirs)]
weights = [next(model.parameters()) for model in (mine, theirs)]


def mean(tensor):
    total = tensor.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


with mine.no_sync():
    steps[0]()
own, weights[0].grad = weights[0].grad, None
for step in steps:
    step()
got, beside = (weight.grad.clone() for weight in weights)
if "PowerSGD" in kind:
    whole = mean(own)
    misses, close = [(whole - one).norm().item() for one in (got, beside)], abs((got * (whole - got)).sum().item())
    equal = misses[0] <= 1.1 * misses[1] and close <= 1e-4 * got.square().sum().item()
    equal = equal and torch.linalg.matrix_rank(got, rtol=1e-4).item() == compressor.rank
else:
    first = eval("gc." + kind)  # a hook numbers the parameters
    equal = torch.allclose(got, mean(first.decompress(first.compress(own, "0"), own.shape, "0")))
seconds = [[timed(step) for step in steps] for _ in range(repetitions + 2)][2:]
alone, gradient = eval("gc." + kind), torch.randn(width, width)
messages = []
encode = min(timed(lambda: messages.append(alone.compress(gradient, "weight"))) for _ in range(repetitions + 1))
decode = min(timed(lambda: alone.decompress(messages[-1], gradient.shape, "weight")) for _ in range(repetitions + 1))
[seconds, encode, decode, sum(part.nbytes for part in messages[-1]), equal]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure each compressor."""
    exercise = catalogue.find("gradient_compression")
    modules = {exercise.name: exercise.source("solution")[0]}
    width, found = 64 if quick else 1000, []
    for kind in ("TopK(0.01)", "RandomK(0.01, 0)", "OneBit()", "Quantized()", "PowerSGD(4)"):
        given = f"kind, width, repetitions = {kind!r}, {width}, {repetitions}\n"
        job = Job(source=given + PROGRAM, modules=modules, timeout=300, trace=False)
        run = local(nproc_per_node=RANKS).run(job).raise_if_failed()
        pairs = zip(*(value[0] for value in run.values), strict=True)
        slowest = [[max(times) for times in zip(*step, strict=True)] for step in pairs]
        mine, theirs = (min(column) for column in zip(*slowest, strict=True))
        _, encode, decode, nbytes, _ = run.values[0]
        equal = all(value[-1] for value in run.values)
        same = "PowerSGD" in kind
        work = f"{kind}, {4 * width**2 / 1e3:,.0f} kB as {nbytes / 1e3:,.1f} kB (encode {1e3 * encode:.2f}, decode "
        work += f"{1e3 * decode:.2f} ms); {'PowerSGD' if same else 'float16'}"
        # torch's keeps the mean's error; the solution computes each rank's own, another product of P and Q
        found.append(Beside(work, mine, theirs, equal, same_algorithm=False))
    return found
