"""The solution of expert_parallel equals one process that has all experts, on virtual and local ranks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, local, virtual

EXERCISE = catalogue.find("expert_parallel")
MODULES = {EXERCISE.name: EXERCISE.source("solution")[0]}

# `groups` groups of experts side by side; each rank also evaluates its tokens alone, with all experts, one by one
BESIDE_ONE_PROCESS = """
import math
import torch, torch.distributed as dist
import torch.nn.functional as F
from labkit.exercises import expert_parallel as ep

dist.init_process_group({backend!r})
rank, ranks = dist.get_rank(), dist.get_world_size()
size, factor, dtype = ranks // {groups}, {factor}, torch.{dtype}
num_experts = {each} * size
top_k = min({top_k}, num_experts)
side_by_side = [dist.new_group(range(n * size, (n + 1) * size)) for n in range({groups})][rank // size]
replicas = [dist.new_group(range(n, ranks, size)) for n in range(size)][rank % size]
torch.manual_seed({seed})
layer = ep.ExpertParallelMoE(6, 10, num_experts, top_k, side_by_side, factor).to(dtype)
gate = layer.router.gate.weight.detach().clone().double().requires_grad_()
full = [torch.empty(num_experts, *weight.shape[1:], dtype=dtype) for weight in layer.experts.parameters()]
for whole, own in zip(full, layer.experts.parameters()):
    dist.all_gather(list(whole.chunk(size)), own.detach(), group=side_by_side)
up, down = (whole.double().requires_grad_() for whole in full)
torch.manual_seed({seed} + rank)
x = torch.randn({tokens}[rank], 6).to(dtype)
gradient = torch.randn_like(x)

mine = x.clone().requires_grad_()
out = layer(mine)
((out * gradient).sum() + layer.routing.loss).backward()
ep.average_gradients(layer, replicas)

theirs = x.clone().double().requires_grad_()
probabilities = (theirs @ gate.T).softmax(-1)
experts = layer.routing.experts
chosen = probabilities.detach().topk(top_k).values
agree = torch.allclose(probabilities.detach().gather(1, experts), chosen, atol=1e-6)
capacity = math.inf if factor is None else math.ceil(factor * len(x) * top_k / num_experts)
queue, results, dropped = [0] * num_experts, [torch.zeros(6, dtype=torch.float64) for _ in x], 0
for choice in range(top_k):
    for token in range(len(x)):
        number = int(experts[token, choice])
        queue[number] += 1
        if queue[number] <= capacity:
            row = F.gelu(theirs[token] @ up[number]) @ down[number]
            results[token] = results[token] + probabilities[token, number] * row
        else:
            dropped += 1
wanted = torch.stack(results) if results else theirs * 0
shares = torch.bincount(experts.flatten(), minlength=num_experts).double() / max(experts.numel(), 1)
balance = num_experts * (shares * probabilities.sum(0)).sum() / max(len(x), 1)
((wanted * gradient.double()).sum() + balance).backward()
for parameter in (gate, up, down):
    parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    dist.all_reduce(parameter.grad)
    parameter.grad /= ranks

own = slice(layer.experts.own.start, layer.experts.own.stop)
pairs = [(out, wanted), (mine.grad, theirs.grad), (layer.router.gate.weight.grad, gate.grad)]
pairs += [(layer.experts.up.grad, up.grad[own]), (layer.experts.down.grad, down.grad[own])]
assert all(seen.dtype == dtype for seen, _ in pairs) and agree
assert int(layer.routing.dropped) == dropped and abs(float(layer.routing.loss) - float(balance)) < 1e-5
max((float((seen.double() - one).abs().max()) for seen, one in pairs if one.numel()), default=0.0)
"""
CLOSE = {"float32": 1e-5, "float64": 1e-11, "bfloat16": 0.1}


@settings(max_examples=10)
@given(
    sizes=st.sampled_from([(1, 1), (2, 1), (3, 1), (4, 1), (4, 2), (2, 2)]),
    each=st.integers(1, 3),
    top_k=st.integers(1, 3),
    factor=st.sampled_from([None, 0.3, 1.0, 1.25]),
    tokens=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    dtype=st.sampled_from(list(CLOSE)),
    backend=st.sampled_from(["gloo", "nccl"]),
    seed=st.integers(0, 2**31),
)
def test_the_solution_equals_one_process(sizes: tuple[int, int], dtype: str, **how: object) -> None:
    cell = BESIDE_ONE_PROCESS.format(groups=sizes[1], dtype=dtype, **how)
    run = virtual(nproc_per_node=sizes[0]).run(Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS))
    assert max(run.raise_if_failed().values) < CLOSE[dtype]


def test_local_ranks_compute_the_same() -> None:
    how = {"groups": 1, "each": 2, "top_k": 2, "factor": 1.0, "tokens": [5, 0, 7], "dtype": "float32", "seed": 0}
    cell = BESIDE_ONE_PROCESS.format(backend="gloo", **how)
    run = local(nproc_per_node=3).run(Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS))
    assert max(run.raise_if_failed().values) < CLOSE["float32"]


# only shapes are computed; `counts` and `received` are declared
MANY_RANKS = """
import torch, torch.distributed as dist
from labkit import suppose
from labkit.exercises import expert_parallel as ep

dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
layer = ep.ExpertParallelMoE(64, 128, 2 * ranks, 4)
x = torch.empty(ranks, 64, requires_grad=True)
# rank r sends r % 2 rows to each first expert, and all others to rank 0
mine = [[rank % 2, 0] for _ in range(ranks)]
mine[0][1] = 4 * ranks - rank % 2 * ranks
others = [[source % 2, 0] for source in range(ranks)]
if rank == 0:
    for source in range(ranks):
        others[source][1] = 4 * ranks - source % 2 * ranks
with suppose(counts=mine, received=others):
    out = layer(x)
out.backward(torch.empty_like(out))
out.shape == x.shape
"""


def test_counts_of_fake_ranks_are_declared() -> None:
    run = virtual("dgx-h100", nnodes=6, fake=True).run(Job(source=MANY_RANKS, modules=MODULES, timeout=BROKEN_SECONDS))
    assert run.raise_if_failed().values == [True] * 48
    rows = [event.nbytes for event in run.trace.collectives(1) if event.operation == "all_to_all"][1:]
    assert rows[0] == 4 * 48 * 64 * 4  # dispatch: each of this rank's choices once
    assert rows[1] == 48 // 2 * 64 * 4  # combine: as many as have come
