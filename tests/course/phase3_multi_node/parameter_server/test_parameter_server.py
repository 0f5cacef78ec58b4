"""The parameter server's solution: any partition is balanced, sync trains like one process, and real models learn."""

from __future__ import annotations

import nbformat
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from real_training import ACCURACY, DIGITS, MORE_RANKS, TEXT, alone, bigrams
from waiting import BROKEN_SECONDS

from labkit import Job, catalogue, exercises, local, virtual
from labkit.clusters.virtual import kill
from labkit.trace.busy import busy

EXERCISE = catalogue.find("parameter_server")
MODULES = {EXERCISE.name: EXERCISE.source("solution")[0]}
parameter_server = exercises.load(EXERCISE, MODULES[EXERCISE.name])


@settings(max_examples=200)
@given(
    parameters=st.lists(st.tuples(st.integers(0, 60), st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))),
    servers=st.integers(1, 9),
)
def test_any_partition_is_balanced(parameters: list[tuple[int, torch.dtype]], servers: int) -> None:
    tensors = [torch.zeros(numel, dtype=dtype) for numel, dtype in parameters]
    shards = parameter_server.partition(tensors, servers)
    pieces = [piece for shard in shards for piece in shard]
    assert [(p.parameter, place) for p in pieces for place in range(p.start, p.stop)] == [
        (index, place) for index, tensor in enumerate(tensors) for place in range(tensor.numel())
    ]
    assert len(shards) == servers
    assert len(pieces) <= sum(tensor.numel() > 0 for tensor in tensors) + servers - 1
    share = sum(tensor.nbytes for tensor in tensors) / servers
    for shard in shards:
        assert abs(sum(p.numel * tensors[p.parameter].element_size() for p in shard) - share) <= 16


STEPS = """
import torch
import torch.distributed as dist
from functools import partial
from torch import nn
from labkit.exercises import parameter_server

dist.init_process_group(BACKEND)
rank = dist.get_rank()
torch.manual_seed(SEED)
model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
adam = partial(torch.optim.Adam, lr=0.05, eps=0.01)
generator = torch.Generator().manual_seed(SEED)


def batch(shares):
    return torch.randn(sum(shares), 5, generator=generator), torch.randint(0, 3, (sum(shares),), generator=generator)


if SERVERS == 0:
    optimizer = adam(model.parameters())
    for shares in SHARES:
        inputs, targets = batch(shares)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
elif rank < SERVERS:
    parameter_server.ParameterServer(model.parameters(), adam, SERVERS).serve()
else:
    with parameter_server.Worker(model.parameters(), SERVERS) as worker:
        for shares in SHARES:
            inputs, targets = batch(shares)
            mine = slice(sum(shares[: rank - SERVERS]), sum(shares[: rank - SERVERS + 1]))
            worker.pull()
            model.zero_grad()
            if shares[rank - SERVERS]:
                nn.functional.cross_entropy(model(inputs[mine]), targets[mine]).backward()
            worker.push(shares[rank - SERVERS])
        worker.pull()
[parameter.detach() for parameter in model.parameters()] if rank >= SERVERS else None
"""


@settings(max_examples=6)
@given(
    shares=st.integers(1, 4).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 4), min_size=n, max_size=n).filter(lambda sizes: sum(sizes) > 0),
            min_size=1,
            max_size=3,
        )
    ),
    servers=st.integers(1, 4),
    backend=st.sampled_from(["gloo", "nccl"]),
    seed=st.integers(0, 2**31),
)
def test_sync_trains_like_one_process(shares: list[list[int]], servers: int, backend: str, seed: int) -> None:
    def trained(ranks: int, servers: int) -> list[list[torch.Tensor]]:
        cell = f"SHARES, SERVERS, BACKEND, SEED = {shares}, {servers}, {backend!r}, {seed}\n{STEPS}"
        job = Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS)
        return virtual(nproc_per_node=ranks).run(job).raise_if_failed().values[servers:]

    (wanted,) = trained(1, 0)
    for weights in trained(servers + len(shares[0]), servers):
        for seen, right in zip(weights, wanted, strict=True):
            torch.testing.assert_close(seen, right, rtol=1e-4, atol=1e-5)


LEARN = """
from functools import partial

import torch.distributed as dist
from labkit.exercises import parameter_server

dist.init_process_group("gloo")
rank, workers = dist.get_rank(), dist.get_world_size() - 1
make, options = OPTIMIZER
if rank == 0:
    parameter_server.ParameterServer(model.parameters(), partial(make, **options)).serve()
else:
    with parameter_server.Worker(model.parameters()) as worker:
        for step in range(STEPS):
            worker.pull()
            model.zero_grad()
            loss_of(model, step, rank - 1, workers).backward()
            worker.push()
        worker.pull()
result(model) if rank == 1 else None
"""


def learned(program: str, workers: int) -> float:
    job = Job(source=program + LEARN, modules=MODULES, timeout=BROKEN_SECONDS, trace=False)
    return float(local(nproc_per_node=1 + workers).run(job).raise_if_failed().values[1])


@pytest.mark.parametrize("workers", [4, *MORE_RANKS])
def test_digits_are_learned(workers: int) -> None:
    assert learned(DIGITS, workers) >= ACCURACY


@pytest.mark.parametrize("workers", [4, *MORE_RANKS])
def test_text_is_learned_as_by_one_process(workers: int) -> None:
    loss = learned(TEXT, workers)
    assert loss == pytest.approx(alone(TEXT), rel=0.01)
    assert loss < bigrams()


MISUSE = """
import torch, torch.distributed as dist
from functools import partial
from labkit.exercises import parameter_server

dist.init_process_group()
weight, sgd = torch.zeros(3, requires_grad=True), partial(torch.optim.SGD, lr=0.1)
calls = [
    lambda: parameter_server.ParameterServer([weight], sgd, mode="bsp"),
    lambda: parameter_server.ParameterServer([weight], sgd, mode="ssp"),
    lambda: parameter_server.ParameterServer([weight], sgd, mode="sync", staleness=1),
    lambda: parameter_server.ParameterServer([weight], sgd, num_servers=0),
    lambda: parameter_server.ParameterServer([weight], sgd, num_servers=3),
    lambda: parameter_server.ParameterServer([weight.detach()], sgd),
    lambda: parameter_server.Worker([weight], 3 - dist.get_rank()),
]
found = []
for call in calls:
    try:
        call()
    except ValueError as error:
        found.append(str(error))
found
"""


def test_wrong_arguments_are_named_before_any_message() -> None:
    run = virtual(nproc_per_node=3).run(Job(source=MISUSE, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed()
    names = ["mode", "staleness", "staleness", "num_servers", "num_servers", "parameters", "num_servers"]
    assert [message.split()[0].split("=")[0] for message in run.values[0]] == names
    assert not any(run.trace.messages_sent(rank) for rank in range(3))


DEAD = """
import os, torch, torch.distributed as dist
from functools import partial
from labkit.exercises import parameter_server

dist.init_process_group("gloo")
weight = torch.zeros(4, requires_grad=True)
if dist.get_rank() < SERVERS:
    server = parameter_server.ParameterServer([weight], partial(torch.optim.SGD, lr=1.0), SERVERS, "ssp", 1)
    server.serve()
    weight = server.parameters[0]
else:
    with parameter_server.Worker([weight], SERVERS) as worker:
        for step in range(6):
            worker.pull()
            if dist.get_rank() == DIES and step == 2:
                os._exit(0)
            weight.grad = torch.full_like(weight, -1.0)
            worker.push()
weight[0].item()
"""


def test_a_worker_whose_process_ends_does_not_stop_the_others_on_real_processes() -> None:
    job = Job(source=f"SERVERS, DIES = 1, 2\n{DEAD}", modules=MODULES, timeout=BROKEN_SECONDS, trace=False)
    run = local(nproc_per_node=3).run(job)
    assert [run.ranks[rank].error for rank in (0, 1)] == [None, None]
    assert run.ranks[0].value == 8.0, "six pushes of the first worker, and two of the other one"


def test_a_server_that_has_stopped_is_named() -> None:
    job = Job(source=f"SERVERS, DIES = 2, None\n{DEAD}", modules=MODULES, timeout=BROKEN_SECONDS)
    error = virtual(nproc_per_node=4, faults=[kill(1, at=2e-4)]).run(job).ranks[3].error
    assert error is not None
    assert (error.type, "server 1, rank 1, has stopped serving" in error.message) == ("ServerStopped", True)


WATCHED = """
import torch
import torch.distributed as dist

CELL
watched(parameter_server, "ssp", 1)
"""


def test_the_workers_of_the_notebooks_timeline_are_drawn_as_computing() -> None:
    cells = nbformat.read(EXERCISE.notebook, as_version=4).cells
    (cell,) = (cell.source for cell in cells if "def watched(" in cell.source)
    cluster = virtual(nnodes=4, nproc_per_node=1, inter_node="ethernet-10g")
    run = cluster.run(Job(source=WATCHED.replace("CELL", cell), modules=MODULES)).raise_if_failed()
    computing = [1e3 * time.compute for time in busy(run.trace)[1:]]
    assert computing == pytest.approx([40, 40, 120], rel=0.02)
