"""Part of solutions.py: exercise 19's layer of experts compared with one of torch's collectives, on 4 local ranks.

Torch has no such layer. The library's one is written as torchtitan does it, with torch's differentiable all-to-all and
the solution's experts; without a load-balancing loss and a capacity. Runs alternate, forward and backward; the time is
the slowest rank's.
"""

from __future__ import annotations

import statistics

from beside import Beside

from labkit import Job, catalogue, local

RANKS = 4
PROGRAM = """
import time
import torch, torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from labkit.exercises import expert_parallel

dist.init_process_group("gloo")
torch.set_num_threads(1)
group, ranks = dist.group.WORLD, dist.get_world_size()
torch.manual_seed(0)
layer = expert_parallel.ExpertParallelMoE(width, 2 * width, 2 * ranks, 2)
tokens = torch.randn(ranks, tokens, width)[dist.get_rank()]


def theirs(x):
    weights, experts = layer.router.gate(x).softmax(-1).topk(2)
    order = experts.flatten().argsort(stable=True)
    counts = torch.bincount(experts.flatten(), minlength=2 * ranks)
    received = all_to_all_single(counts, None, None, group).view(ranks, -1)
    to_send, to_receive = counts.view(ranks, -1).sum(1).tolist(), received.sum(1).tolist()
    rows = all_to_all_single_autograd(x[order // 2], to_receive, to_send, group)
    place = torch.arange(2).repeat(ranks).repeat_interleave(received.flatten()).argsort(stable=True)
    outputs = layer.experts(rows[place].split(received.sum(0).tolist()))
    rows = torch.empty_like(rows).index_copy(0, place, torch.cat(outputs))
    rows = all_to_all_single_autograd(rows, to_send, to_receive, group) * weights.flatten()[order, None]
    return torch.zeros_like(x).index_add(0, order // 2, rows)


def timed(function):
    x = tokens.clone().requires_grad_()
    layer.zero_grad()
    dist.barrier()
    began = time.perf_counter()
    out = function(x)
    out.square().sum().backward()
    return time.perf_counter() - began, [out.detach(), x.grad, *(p.grad for p in layer.parameters())]


pairs = [(timed(layer), timed(theirs)) for _ in range(repetitions + 1)][1:]
seconds = [[pair[which][0] for pair in pairs] for which in (0, 1)]
equal = all(torch.allclose(a, b, atol=1e-4, rtol=1e-4) for a, b in zip(pairs[-1][0][1], pairs[-1][1][1]))
[seconds, equal]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure forward and backward of a layer of 8 experts, two for each token."""
    exercise = catalogue.find("expert_parallel")
    rows = []
    for tokens, width in ((64, 16),) if quick else ((512, 128), (2048, 256)):
        job = Job(
            source=f"tokens, width, repetitions = {tokens}, {width}, {repetitions}\n{PROGRAM}",
            modules={exercise.name: exercise.source("solution")[0]},
            trace=False,
        )
        run = local(nproc_per_node=RANKS).run(job).raise_if_failed()
        mine, theirs = (max(statistics.median(value[0][who]) for value in run.values) for who in (0, 1))
        equal = all(value[1] for value in run.values)
        work = f"8 experts, {tokens} tokens of {width} on each of {RANKS} ranks; torch's collectives"
        rows.append(Beside(work, mine, theirs, equal, same_algorithm=True))
    return rows
