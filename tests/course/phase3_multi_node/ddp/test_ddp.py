"""The solution of ddp compared with torch's DDP: gradients, time, memory, hooks; and real training through it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_training import ACCURACY, DIGITS, MORE_RANKS, TEXT, alone, bigrams
from waiting import BROKEN_SECONDS

from labkit import Job, Run, catalogue, local, virtual

EXERCISE = catalogue.find("ddp")
MODULES = {one.name: one.source("solution")[0] for one in (*EXERCISE.builds_on, EXERCISE)}

HEAD = """
import copy, time
import torch, torch.distributed as dist
from torch import nn
from labkit.exercises import ddp

dist.init_process_group()
rank = dist.get_rank()


def wrapped(mine, model, **options):
    return (ddp if mine else nn.parallel).DistributedDataParallel(model, **options)

"""

GRADIENTS = """
torch.manual_seed(rank)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(LAYERS))
        self.norm = nn.BatchNorm1d(4)
        self.layers[-1].weight = self.layers[0].weight

    def forward(self, x, skipped):
        for number, layer in enumerate(self.layers):
            if number not in skipped:
                x = torch.tanh(layer(x))
        return self.norm(x)


mine = Net()
models = [mine, copy.deepcopy(mine)]
both = [wrapped(not number, model, bucket_cap_mb=CAP, **OPTIONS) for number, model in enumerate(models)]
for step in range(3):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step * 10 + rank))
    for one in both:
        if CLEAR:
            one.zero_grad()
        one(x, SKIPPED[rank]).square().mul(torch.arange(4)).sum().backward()
    for a, b in zip(*(model.parameters() for model in models)):
        assert (a.grad is None) == (b.grad is None), step
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5)
    for a, b in zip(*(model.buffers() for model in models)):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
"""


@settings(max_examples=8)
@given(
    world_size=st.integers(1, 4),
    layers=st.integers(2, 5),
    cap=st.sampled_from([25, 1e-4, 1e-5]),
    view=st.booleans(),
    clear=st.booleans(),
    data=st.data(),
)
def test_gradients_and_buffers_are_those_of_torchs(
    world_size: int, layers: int, cap: float, view: bool, clear: bool, data: st.DataObject
) -> None:
    subsets = st.sets(st.integers(1, layers - 1))
    skipped = data.draw(st.lists(subsets, min_size=world_size, max_size=world_size))
    options = {"gradient_as_bucket_view": view, "find_unused_parameters": any(skipped)}
    source = f"LAYERS, CAP, CLEAR, SKIPPED, OPTIONS = {layers}, {cap}, {clear}, {skipped}, {options}\n"
    job = Job(source=source + HEAD + GRADIENTS, modules=MODULES, timeout=BROKEN_SECONDS)
    virtual(nproc_per_node=world_size).run(job).raise_if_failed()


STEP = """
model = wrapped(
    MINE, nn.Sequential(*(nn.Linear(512, 512) for _ in range(12))), bucket_cap_mb=3, gradient_as_bucket_view=True
)
x = torch.randn(SAMPLES, 512)
for _ in range(3):
    model.zero_grad()
    outputs = model(x).sum()
    dist.barrier()
    began = time.perf_counter()
    outputs.backward()
    seconds = time.perf_counter() - began
seconds
"""


def backward(mine: bool, samples: int, **cluster: object) -> Run:
    source = f"MINE, SAMPLES = {mine}, {samples}\n{HEAD}{STEP}"
    job = Job(source=source, modules=MODULES, timeout=BROKEN_SECONDS)
    return virtual(fake=True, **cluster).run(job).raise_if_failed()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("samples", "cluster"),
    [
        (512, {"nnodes": 4, "nproc_per_node": 1, "inter_node": "ethernet-10g"}),
        (2048, {"nnodes": 2, "nproc_per_node": 2, "inter_node": "ib-hdr"}),
        (256, {"nnodes": 1, "nproc_per_node": 4, "intra_node": "nvlink3"}),
    ],
    ids=["ethernet", "two machines", "nvlink"],
)
def test_as_much_is_hidden_as_by_torchs_and_no_more_is_held(samples: int, cluster: dict[str, object]) -> None:
    ours, theirs = (backward(mine, samples, **cluster) for mine in (True, False))
    assert max(ours.values) <= 1.01 * max(theirs.values)
    assert ours.trace.peak_memory(0) <= 1.01 * theirs.trace.peak_memory(0)


HOOKED = """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

model = nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 4))
models = [model, copy.deepcopy(model)]
both = [wrapped(not number, one, bucket_cap_mb=0.002) for number, one in enumerate(models)]
for one in both:
    one.register_comm_hook(None, fp16_compress_hook)
    for step in range(2):
        one.zero_grad()
        one(torch.full((2, 16), rank + step + 1.0)).square().sum().backward()
all(torch.equal(a.grad, b.grad) for a, b in zip(*(model.parameters() for model in models)))
"""


def test_torchs_own_communication_hook_works() -> None:
    for make in (virtual, local):
        run = make(nproc_per_node=2).run(Job(source=HEAD + HOOKED, modules=MODULES, timeout=BROKEN_SECONDS))
        assert run.raise_if_failed().values == [True, True]


REPLACED = """
import gc, weakref

model = nn.Linear(2, 2)
first = weakref.ref(wrapped(True, model))
gc.collect()
gone = first() is None
second = wrapped(True, model)
second(torch.full((1, 2), rank + 1.0)).sum().backward()
[gone, model.bias.grad.tolist(), model.weight.grad[0].tolist()]
"""


def test_a_wrapper_that_is_replaced_leaves_nothing_behind() -> None:
    run = virtual(nproc_per_node=2).run(Job(source=HEAD + REPLACED, modules=MODULES, timeout=BROKEN_SECONDS))
    assert run.raise_if_failed().values == [[True, [1.0, 1.0], [1.5, 1.5]]] * 2


TRAINING = """
import torch.distributed as dist
from labkit.exercises import ddp

dist.init_process_group("gloo")
wrapped = ddp.DistributedDataParallel(model, bucket_cap_mb=0.1, gradient_as_bucket_view=True)
make, options = OPTIMIZER
optimizer = make(wrapped.parameters(), **options)
for step in range(STEPS):
    optimizer.zero_grad()
    loss_of(wrapped, step, dist.get_rank(), dist.get_world_size()).backward()
    optimizer.step()
result(model)
"""


def trained(program: str, ranks: int) -> list[float]:
    job = Job(source=program + TRAINING, modules=MODULES, timeout=BROKEN_SECONDS, trace=False)
    return list(local(nproc_per_node=ranks).run(job).raise_if_failed().values)


@pytest.mark.parametrize("ranks", [4, *MORE_RANKS])
def test_digits_are_learned(ranks: int) -> None:
    found = trained(DIGITS, ranks)
    assert min(found) >= ACCURACY
    assert len(set(found)) == 1


@pytest.mark.parametrize("ranks", [4, *MORE_RANKS])
def test_text_is_learned_as_by_one_process(ranks: int) -> None:
    found = trained(TEXT, ranks)
    assert max(found) < bigrams()
    assert abs(found[0] / alone(TEXT) - 1) < 0.01
    assert len(set(found)) == 1


RATES = """
from types import SimpleNamespace
from labkit.exercises import ddp

options = {"gradient_as_bucket_view": True, "find_unused_parameters": False, "broadcast_buffers": True}
config = SimpleNamespace(world_size=2, **options)
[ddp.DDPTrainer(config, 0.1, size).learning_rate_now() for size in (128, 256)]
"""


def test_the_given_learning_rate_is_that_of_256_samples() -> None:
    run = virtual(nproc_per_node=1).run(Job(source=RATES, modules=MODULES, timeout=BROKEN_SECONDS))
    assert run.raise_if_failed().values == [[0.1, 0.2]]
