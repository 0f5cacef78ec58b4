"""Part of solutions.py: exercise 23's times of steps beside torch.utils.benchmark, and a fit beside scipy's.

The first row has the seconds of a step of a small model on 2 local ranks, as each of the two reports it: the ratio
shows that `time_steps` adds nothing to a step. Both time the same number of steps, in turn. The second row has the
seconds of a fit of the universal scalability law; both must find the parameters that the points were made of.
"""

from __future__ import annotations

import statistics
import time
import warnings

import numpy as np
from beside import Beside

from labkit import Job, catalogue, local
from labkit.course.phase4_production.scaling_study.given import fit_law

RANKS = 2
PROGRAM = """
import torch, torch.distributed as dist
from torch.utils.benchmark import Timer
from labkit.exercises import scaling_study

dist.init_process_group("gloo")
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
batch, taken = torch.randn(width, width), 0


def step():
    global taken
    taken += 1
    model.zero_grad()
    model(batch).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def theirs():
    seconds = torch.tensor(Timer("step()", globals={"step": step}).timeit(count).mean, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item()


benchmark = scaling_study.ScalabilityBenchmark(steps=count, warmup=2, repeats=1)  # Timer takes 2, too
pairs, steps = [], []
for _ in range(repetitions + 1):
    taken = 0
    mine = benchmark.time_steps(step, None)[0]
    steps.append(taken)
    taken = 0
    pairs.append((mine, theirs()))
    steps.append(taken)
[pairs[1:], len(set(steps)) == 1]
"""
GPUS = [1, 2, 4, 8, 16, 32, 64, 128, 256]
CONTENTION, COHERENCY = 0.01, 1e-5


def usl(gpus: float, contention: float, coherency: float) -> float:
    """Return the speedup of the universal scalability law."""
    return gpus / (1 + contention * (gpus - 1) + coherency * gpus * (gpus - 1))


def _fits(repetitions: int) -> Beside:
    """Fit planted points, in turn with scipy's `curve_fit`."""
    from scipy.optimize import curve_fit

    rates = [1000 * usl(n, CONTENTION, COHERENCY) for n in GPUS]
    mine, theirs, equal = [], [], True
    for _ in range(repetitions + 1):
        began = time.perf_counter()
        fit = fit_law(usl, GPUS, rates)
        between = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, _ = curve_fit(
                lambda n, rate, s, k: np.log(rate * usl(n, s, k)), np.array(GPUS, float), np.log(rates),
                p0=[1000, 1e-3, 1e-3], bounds=([200, 0, 0], [5000, 1, 1]), x_scale=[1000, 1e-3, 1e-3],
            )  # fmt: skip
        theirs.append(time.perf_counter() - between)
        mine.append(between - began)
        own = [] if fit is None else list(fit.parameters.values())
        equal = equal and bool(np.allclose([own, found[1:]], [CONTENTION, COHERENCY], rtol=1e-3))
    work = f"fit of {len(GPUS)} points; scipy's curve_fit"
    return Beside(work, statistics.median(mine[1:]), statistics.median(theirs[1:]), equal, same_algorithm=False)


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure a step's time by both, and fits."""
    exercise = catalogue.find("scaling_study")
    width, count = (32, 11) if quick else (512, 41)
    job = Job(
        source=f"width, count, repetitions = {width}, {count}, {repetitions}\n{PROGRAM}",
        modules={one.name: one.source("solution")[0] for one in (*exercise.builds_on, exercise)},
        trace=False,
    )
    run = local(nproc_per_node=RANKS).run(job).raise_if_failed()
    mine, theirs = (max(statistics.median(pair[who] for pair in value[0]) for value in run.values) for who in (0, 1))
    equal = all(value[1] for value in run.values)
    work = f"step of a small model, {RANKS} ranks, as timed; torch.utils.benchmark"
    return [Beside(work, mine, theirs, equal, same_algorithm=False), _fits(repetitions)]
