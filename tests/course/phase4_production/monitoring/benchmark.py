"""Part of solutions.py: what exercise 22's monitor adds to a step, and what a step's scalars cost in TensorBoard.

The first row compares steps of a small model under the monitor, which exchanges after 10 of them, with steps without
one, on 2 local ranks: its ratio is the monitor's cost. The second compares the file of JSON lines with TensorBoard's
writer, the same figures in each. Runs alternate; times are those of the slowest rank.
"""

from __future__ import annotations

import statistics

from beside import Beside

from labkit import Job, catalogue, local

RANKS = 2
PROGRAM = """
import tempfile, time
import torch, torch.distributed as dist
from labkit.exercises import monitoring
from labkit.course.phase4_production.monitoring.given import JsonLines, StepRecord, TensorBoardSink

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank, ranks = dist.get_rank(), dist.get_world_size()


def steps(watch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
    monitor = monitoring.DistributedTrainingMonitor(rank, ranks, log_dir=tempfile.mkdtemp()) if watch else None
    batch = torch.randn(width, width)
    dist.barrier()
    began = time.perf_counter()
    for step in range(count):
        model.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if monitor:
            monitor.log_step_metrics(step, loss, len(batch))
    return (time.perf_counter() - began) / count, model[0].weight.grad


def written(make):
    sink, record = make(), StepRecord(0.0, rank, 0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7)
    began = time.perf_counter()
    for step in range(count):
        sink.step(record._replace(step=step))
    seconds = (time.perf_counter() - began) / count
    sink.close()
    return seconds


trained = [(steps(True), steps(False)) for _ in range(repetitions + 1)][1:]
sinks = [
    (written(lambda: JsonLines(tempfile.mkdtemp(), 0, 1)), written(lambda: TensorBoardSink(tempfile.mkdtemp(), 0)))
    for _ in range(repetitions + 1)
][1:]
equal = all(torch.equal(mine[1], bare[1]) for mine, bare in trained)
[[(mine[0], bare[0]) for mine, bare in trained], sinks, equal]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure steps, and the writing of their figures."""
    exercise = catalogue.find("monitoring")
    width, count = (32, 10) if quick else (512, 40)
    job = Job(
        source=f"width, count, repetitions = {width}, {count}, {repetitions}\n{PROGRAM}",
        modules={exercise.name: exercise.source("solution")[0]},
        trace=False,
    )
    run = local(nproc_per_node=RANKS).run(job).raise_if_failed()

    def slowest(which: int, who: int) -> float:
        return max(statistics.median(pair[who] for pair in value[which]) for value in run.values)

    equal = all(value[2] for value in run.values)
    return [
        Beside(
            f"step of a small model, {RANKS} ranks; without a monitor", slowest(0, 0), slowest(0, 1), equal, True, 1.05
        ),
        Beside("scalars of a step; TensorBoard's writer", slowest(1, 0), slowest(1, 1), True, same_algorithm=False),
    ]
