"""The solution of local_sgd: equal to one process at period 1, and to every rank's steps, repeated here, at others."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, local, virtual

EXERCISE = catalogue.find("local_sgd")
MODULES = {EXERCISE.name: EXERCISE.source("solution")[0]}

# training on all ranks, and the same in this process: all ranks' steps one after the other, in float64
BESIDE_ONE_PROCESS = """
import copy, random
from functools import partial
import torch, torch.distributed as dist
from labkit.exercises import local_sgd

dist.init_process_group({backend!r})
rank, ranks, draw = dist.get_rank(), dist.get_world_size(), random.Random({seed})
torch.manual_seed({seed})
adam, sgd = partial(torch.optim.Adam, lr=0.01, eps=0.01), partial(torch.optim.SGD, lr=0.1, momentum=0.5)
dtype, make, nesterov = torch.{dtype}, {optimizer}, partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
samples = [[draw.choice([0, 1, 2, 5]) for _ in range(ranks)] for _ in range({steps})]
for counts in samples:
    counts[draw.randrange(ranks)] = 3
data = [[torch.randn(n, 3).to(dtype) for n in counts] for counts in samples]
model = torch.nn.Linear(3, 2, dtype=dtype)
models = [copy.deepcopy(model).double() for _ in range(ranks)]


def loss(model, inputs):
    return model(inputs).square().mean()


def mean(tensors, counts):
    return sum(n * tensor for n, tensor in zip(counts, tensors) if n) / sum(counts)


with torch.no_grad():
    for parameter in model.parameters():
        parameter.add_(rank)  # only the first rank's count
optimizer = make(model.parameters())
if {diloco}:
    trainer = local_sgd.DiLoCo(optimizer, nesterov, {period})
else:
    trainer = local_sgd.LocalSGD(optimizer, {period}, {warmup})
for counts, batches in zip(samples, data):
    optimizer.zero_grad()
    loss(model, batches[rank]).backward()
    trainer.step(counts[rank])
trainer.synchronize()

own, since = [make(one.parameters()) for one in models], [0] * ranks
anchor = copy.deepcopy(models[0])
outer = nesterov(anchor.parameters())
for step, (counts, batches) in enumerate(zip(samples, data)):
    for one, batch in zip(models, batches):
        one.zero_grad()
        loss(one, batch.double()).backward()
    parameters = list(zip(*(one.parameters() for one in models)))
    if not {diloco} and ({period} == 1 or step < {warmup}):
        for several in parameters:
            wanted = mean([one.grad for one in several], counts)
            for one in several:
                one.grad = wanted.clone()
        for one in own:
            one.step()
        continue
    for n, one in zip(counts, own):
        if n:
            one.step()
    since = [a + b for a, b in zip(since, counts)]
    local_steps = step + 1 - (0 if {diloco} else {warmup})
    if local_steps % {period} and step + 1 < len(samples):
        continue
    with torch.no_grad():
        for several, place in zip(parameters, anchor.parameters()):
            wanted = mean(several, since)
            place.grad = place - wanted
            for one in several:
                one.copy_(wanted)
        if {diloco}:
            outer.step()
            for several, place in zip(parameters, anchor.parameters()):
                for one in several:
                    one.copy_(place)
    since = [0] * ranks
pairs = list(zip(model.parameters(), models[rank].parameters()))
assert all(seen.dtype == dtype for seen, _ in pairs)
max(float((seen - wanted).abs().max() / wanted.abs().max()) for seen, wanted in pairs)
"""
CLOSE = {"float32": 1e-4, "float64": 1e-11, "bfloat16": 0.1}


@settings(max_examples=6)
@given(
    world_size=st.integers(1, 4),
    period=st.integers(1, 4),
    warmup=st.integers(0, 3),
    steps=st.integers(1, 7),
    diloco=st.booleans(),
    optimizer=st.sampled_from(["adam", "sgd"]),
    dtype=st.sampled_from(list(CLOSE)),
    backend=st.sampled_from(["gloo", "nccl"]),
    seed=st.integers(0, 2**31),
)
def test_the_solution_equals_one_process(world_size: int, dtype: str, **how: object) -> None:
    cell = BESIDE_ONE_PROCESS.format(dtype=dtype, **how)
    run = virtual(nproc_per_node=world_size).run(Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS))
    assert max(run.raise_if_failed().values) < CLOSE[dtype]


def test_local_ranks_compute_the_same() -> None:
    how = {"period": 3, "warmup": 1, "steps": 6, "diloco": False, "optimizer": "adam", "dtype": "float32", "seed": 0}
    cell = BESIDE_ONE_PROCESS.format(backend="gloo", **how)
    run = local(nproc_per_node=3).run(Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS))
    assert max(run.raise_if_failed().values) < CLOSE["float32"]


# batches by measured speed; only shapes are computed
FAKE = """
import time
import torch, torch.distributed as dist
from labkit.exercises import local_sgd

dist.init_process_group("nccl")
model = torch.nn.Linear(4096, 4096, dtype=torch.float16)
trainer = local_sgd.DiLoCo(torch.optim.AdamW(model.parameters()), torch.optim.SGD, period=2)
balancer, seconds = local_sgd.BatchBalancer(), []
for step in range(4):
    if step % 2 == 0 and step:
        balancer.rebalance()
    own = balancer.own(65_536)
    began = time.perf_counter()
    model(torch.empty(own.stop - own.start, 4096, dtype=torch.float16)).sum().backward()
    seconds.append(time.perf_counter() - began)
    balancer.record(own.stop - own.start, seconds[-1])
    trainer.step(own.stop - own.start)
seconds
"""


def test_unequal_gpus_take_the_same_time_in_a_fake_run() -> None:
    cluster = virtual(nnodes=2, nproc_per_node=1, gpu="a100-80gb,v100-32gb", fake=True)
    fast, slow = cluster.run(Job(source=FAKE, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed().values
    assert slow[0] > 1.5 * fast[0]
    assert abs(slow[3] - fast[3]) < 0.05 * fast[3]


# all ways to divide a batch are tried
BALANCE = """
import itertools
import torch.distributed as dist
from labkit.exercises import local_sgd


def slowest(shares):
    return max(share / speed for share, speed in zip(shares, speeds))


shares = local_sgd.balance_batches(speeds, batch)
ways = itertools.product(range(batch + 1), repeat=len(speeds) - 1)
best = min(slowest([*way, batch - sum(way)]) for way in ways if sum(way) <= batch)
assert sum(shares) == batch and min(shares) >= 0 and slowest(shares) <= best * (1 + 1e-12), (shares, best)
"""


@settings(max_examples=5)
@given(
    cases=st.lists(
        st.tuples(st.lists(st.floats(0.01, 1000.0), min_size=1, max_size=3), st.integers(0, 12)), min_size=8, max_size=8
    )
)
def test_no_other_split_is_faster(cases: list[tuple[list[float], int]]) -> None:
    header, body = BALANCE.split("\n\n\n", 1)
    loop = "\n".join(f"    {line}" for line in body.splitlines())
    cell = f"{header}\n\nfor speeds, batch in {cases}:\n{loop}\n"
    virtual(nproc_per_node=1).run(Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed()
