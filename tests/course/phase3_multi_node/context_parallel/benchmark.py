"""Part of solutions.py: exercise 18's ring attention compared with torch's, on 4 local ranks.

Torch's context parallel replaces attention on GPUs only: its dispatcher has no entry for the CPU's kernel. Its ring
takes any kernel, though, and is called here as its dispatcher does, with the same one as the solution's. Torch gathers
all blocks at once by default; here it passes them on, as the solution does. Runs alternate; the time is the slowest
rank's.
"""

from __future__ import annotations

import statistics

from beside import Beside

from labkit import Job, catalogue, local

RANKS = 4
PROGRAM = """
import time
import torch, torch.distributed as dist
from torch.distributed.tensor.experimental._context_parallel import _attention as library
from labkit.exercises import context_parallel
from labkit.torch_versions.attention import attention_backward, attention_forward

dist.init_process_group("gloo")
torch.set_num_threads(1)
group, generator = dist.group.WORLD, torch.Generator().manual_seed(dist.get_rank())
library.set_rotate_method("alltoall")
library._cp_options.enable_load_balance = layout == "zigzag"
q, k, v, gradient = (torch.randn(1, heads, tokens, 64, generator=generator) for _ in range(4))


def backward_kernel(grad, query, key, value, out, logsumexp, is_causal):
    return attention_backward(grad, query, key, value, out, logsumexp, is_causal)


def mine():
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    out = context_parallel.ring_attention(*inputs, group, True, layout)
    out.backward(gradient)
    return [out.detach(), *(x.grad for x in inputs)]


def theirs():
    def forward_kernel(q, k, v, is_causal):
        return attention_forward(q, k, v, is_causal)

    out, lse = library._templated_ring_attention(group, 2, forward_kernel, q, k, v, is_causal=True)
    gradients = library._templated_ring_attention_backward(
        group, 2, backward_kernel, gradient, "grad", q, k, v, out, lse, is_causal=True
    )
    return [out, *gradients]


def timed(attend):
    dist.barrier()
    began = time.perf_counter()
    results = attend()
    return time.perf_counter() - began, results


pairs = [(timed(mine), timed(theirs)) for _ in range(repetitions + 1)][1:]
seconds = [[pair[which][0] for pair in pairs] for which in (0, 1)]
equal = all(torch.allclose(a, b, atol=1e-4) for a, b in zip(pairs[-1][0][1], pairs[-1][1][1]))
[seconds, equal]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure forward and backward of causal attention, in both layouts."""
    exercise = catalogue.find("context_parallel")
    heads, tokens = (2, 64) if quick else (8, 1024)
    rows = []
    for layout in ("zigzag", "contiguous"):
        job = Job(
            source=f"heads, tokens, layout, repetitions = {heads}, {tokens}, {layout!r}, {repetitions}\n{PROGRAM}",
            modules={exercise.name: exercise.source("solution")[0]},
            trace=False,
        )
        run = local(nproc_per_node=RANKS).run(job).raise_if_failed()
        mine, theirs = (max(statistics.median(value[0][who]) for value in run.values) for who in (0, 1))
        equal = all(value[1] for value in run.values)
        work = f"attention, {layout}, {RANKS * tokens} tokens, {heads} heads, {RANKS} ranks; torch's ring"
        rows.append(Beside(work, mine, theirs, equal, same_algorithm=True))
    return rows
