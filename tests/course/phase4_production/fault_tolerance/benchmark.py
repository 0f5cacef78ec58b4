"""Part of solutions.py: exercise 21's training, which may fail at any step, beside torch's DDP, on 4 local ranks.

Both train one epoch of the same global batches, without failures and without checkpoints (those are in exercise 20's
part): what is compared is the price of being ready for failures, which is a journal, a sampler that knows its place,
and one message after backward in place of buckets within it. Runs alternate; the time is the slowest rank's. Times to
recover are in recovery.py.
"""

from __future__ import annotations

import statistics

from beside import Beside

from labkit import Job, catalogue, local

RANKS = 4
PROGRAM = """
import tempfile, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from labkit.exercises import fault_tolerance
from labkit.course.phase4_production.fault_tolerance.given import GlobalBatchSampler

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(64 * steps, width)
data, loss = TensorDataset(inputs, inputs.sin()), torch.nn.MSELoss()


class NoCheckpoints:
    checkpoint_dir = tempfile.mkdtemp()
    should_checkpoint = save_checkpoint = save_async = wait = load_latest_checkpoint = staticmethod(lambda *_: None)


def mine(model, optimizer, loader):
    fault_tolerance.ElasticTraining(NoCheckpoints()).train_with_fault_tolerance(model, optimizer, loss, loader, 1)


def theirs(model, optimizer, loader):
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss(wrapped(inputs), targets).backward()
        optimizer.step()


def timed(train):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(data, batch_sampler=GlobalBatchSampler(len(data), 64, dist.get_world_size(), dist.get_rank()))
    dist.barrier()
    began = time.perf_counter()
    train(model, optimizer, loader)
    return (time.perf_counter() - began) / steps, [parameter.detach() for parameter in model.parameters()]


pairs = [(timed(mine), timed(theirs)) for _ in range(repetitions + 1)][1:]
seconds = [[pair[which][0] for pair in pairs] for which in (0, 1)]
equal = all(torch.allclose(a, b, atol=1e-5) for a, b in zip(pairs[-1][0][1], pairs[-1][1][1]))
[seconds, equal]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure a step of an epoch of 16."""
    exercise = catalogue.find("fault_tolerance")
    width = 64 if quick else 512
    job = Job(
        source=f"width, steps, repetitions = {width}, 16, {repetitions}\n{PROGRAM}",
        modules={exercise.name: exercise.source("solution")[0]},
        trace=False,
    )
    run = local(nproc_per_node=RANKS).run(job).raise_if_failed()
    mine, theirs = (max(statistics.median(value[0][who]) for value in run.values) for who in (0, 1))
    equal = all(value[1] for value in run.values)
    work = f"step, {2 * width * (width + 1):,} parameters, {RANKS} ranks; DDP without checkpoints"
    return [Beside(work, mine, theirs, equal, same_algorithm=False)]
