"""Part of solutions.py: exercise 18's three attentions beside `scaled_dot_product_attention` in one process.

On one rank each of them does the same work as the library, and may take as long. On four ranks, each with a quarter of
the tokens, the library's time is that of one process with all of them; how much shorter theirs is depends on the cores.
Runs alternate; the time is the slowest rank's.
"""

from __future__ import annotations

import statistics

from beside import Beside

from labkit import Job, catalogue, local

KINDS = ("ring", "gather", "ulysses")
PROGRAM = """
import time
import torch, torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention
from labkit.exercises import context_parallel

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
ranks = dist.get_world_size()
whole = [torch.randn(1, count, tokens, 64) for count in (heads, heads // 4 or 1, heads // 4 or 1, heads)]
own = [context_parallel.split_sequence(x, dim=2).contiguous() for x in whole]


def mine():
    inputs = [x.clone().requires_grad_() for x in own[:3]]
    out = getattr(context_parallel, f"{kind}_attention")(*inputs)
    out.backward(own[3])
    return [out.detach(), *(x.grad for x in inputs)]


def theirs():
    if dist.get_rank():
        return None
    inputs = [x.clone().requires_grad_() for x in whole[:3]]
    out = scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=True)
    out.backward(whole[3])
    return [out.detach(), *(x.grad for x in inputs)]


def timed(attend):
    dist.barrier()
    began = time.perf_counter()
    results = attend()
    return time.perf_counter() - began, results


pairs = [(timed(mine), timed(theirs)) for _ in range(repetitions + 1)][1:]
seconds = [[pair[which][0] for pair in pairs] for which in (0, 1)]
merged = [context_parallel.merge_sequence(x, dim=2) for x in pairs[-1][0][1]]
equal = dist.get_rank() > 0 or all(torch.allclose(a, b, atol=1e-4) for a, b in zip(merged, pairs[-1][1][1]))
[seconds, equal]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure forward and backward of causal attention in zigzag, on one rank and on four."""
    exercise = catalogue.find("context_parallel")
    heads, tokens = (4, 256) if quick else (8, 4096)
    rows = []
    for ranks in (1, 4):
        for kind in KINDS:
            job = Job(
                source=f"heads, tokens, kind, repetitions = {heads}, {tokens}, {kind!r}, {repetitions}\n{PROGRAM}",
                modules={exercise.name: exercise.source("solution")[0]},
                trace=False,
            )
            run = local(nproc_per_node=ranks).run(job).raise_if_failed()
            mine = max(statistics.median(value[0][0]) for value in run.values)
            theirs = statistics.median(run.values[0][0][1])
            equal = all(value[1] for value in run.values)
            work = f"{kind}, {tokens} tokens, {heads} heads, {ranks} rank{'s' * (ranks > 1)}; one process"
            rows.append(Beside(work, mine, theirs, equal, same_algorithm=ranks == 1))
    return rows
