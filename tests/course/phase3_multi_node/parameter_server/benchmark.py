"""Part of solutions.py: exercise 14's parameter server compared with torch.distributed.rpc, 1, 2 and 4 workers.

One server and its workers are local ranks with gloo; rpc uses TensorPipe. With `async` each worker pulls the weights
and pushes a gradient, again and again; the time is that of one such step of all workers, the slowest worker's. The
weights at the end show that no push was lost. The algorithms differ: rpc serves calls in several threads and sends a
reply to each; here a message waits until its receive is posted.
"""

from __future__ import annotations

from beside import Beside

from labkit import Job, catalogue, local

WORKERS = (1, 2, 4)
SERVED = """
from functools import partial
import time
import torch, torch.distributed as dist
from labkit.exercises import parameter_server

dist.init_process_group("gloo")
torch.set_num_threads(1)
weights, seconds = torch.zeros(numel, requires_grad=True), 0.0
weights.grad = torch.full((numel,), -1.0)
if dist.get_rank() == 0:
    server = parameter_server.ParameterServer([weights], partial(torch.optim.SGD, lr=1.0), mode="async")
    server.serve()
    weights = server.parameters[0]
else:
    with parameter_server.Worker([weights]) as worker:
        began = time.perf_counter()
        for _ in range(steps):
            worker.pull()
            worker.push()
        seconds = time.perf_counter() - began
[seconds, weights[0].item()]
"""
CALLED = """
import os, threading, time
import torch, torch.distributed.rpc as rpc

torch.set_num_threads(1)
weights, lock = torch.zeros(numel), threading.Lock()


def pull():
    return weights


def push(gradient):
    with lock:
        weights.sub_(gradient)


rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world_size)
gradient, began = torch.full((numel,), -1.0), time.perf_counter()
for _ in range(steps if rank else 0):
    rpc.rpc_sync("rank0", pull)
    rpc.rpc_sync("rank0", push, args=(gradient,))
seconds = time.perf_counter() - began if rank else 0.0
rpc.shutdown()
[seconds, weights[0].item()]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure steps with 100 kB and with 4 MB of weights."""
    sizes = (1_000,) if quick else (25_000, 1_000_000)
    return [_beside(workers, numel, 10 * repetitions) for numel in sizes for workers in WORKERS]


def _beside(workers: int, numel: int, steps: int) -> Beside:
    exercise = catalogue.find("parameter_server")
    modules = {exercise.name: exercise.source("solution")[0]}
    times, right = [], True
    for program in (SERVED, CALLED):
        job = Job(source=f"numel, steps = {numel}, {steps}\n{program}", modules=modules, timeout=300, trace=False)
        values = local(nproc_per_node=1 + workers).run(job).raise_if_failed().values
        times.append(max(seconds for seconds, _ in values) / steps)
        right = right and values[0][1] == workers * steps
    ours, theirs = times
    rates = f"{workers / ours:,.0f} and {workers / theirs:,.0f} steps/s"
    work = f"{workers} worker{'s' * (workers > 1)}, {4 * numel / 1e3:,.0f} kB, async: {rates}"
    return Beside(work, ours, theirs, right, same_algorithm=False)
