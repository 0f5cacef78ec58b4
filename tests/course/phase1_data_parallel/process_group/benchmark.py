"""Part of solutions.py: exercise 01's metrics and set-up compared with torch.distributed's own, on 4 local ranks.

A time is the slowest rank's, measured from a barrier. The library's short way to collect metrics is all_gather_object,
which gathers first lengths and then pickled bytes; its fast way is an all_reduce of one tensor, written by hand: the
same algorithm as ours.
"""

from __future__ import annotations

import statistics

from beside import Beside

from labkit import Job, catalogue, local

RANKS = 4
PROGRAM = """
import statistics, time
import torch, torch.distributed as dist
from labkit.exercises import process_group as pg

config = pg.DDPConfig.from_env(backend="gloo")
pg.setup_distributed(config)
metrics = {f"metric {number}": float(number * config.rank) for number in range(10)}


def by_hand():
    sums = torch.tensor([*metrics.values(), 1.0], dtype=torch.float64)
    dist.all_reduce(sums)
    return dict(zip(metrics, (sums[:-1] / sums[-1]).tolist()))


def gathered():
    everybody = [None] * config.world_size
    dist.all_gather_object(everybody, metrics)
    return {name: statistics.fmean(one[name] for one in everybody) for name in metrics}


def ours():
    return pg.all_reduce_metrics(metrics)


def joined():
    return [dist.get_rank(), dist.get_world_size(), dist.get_backend()]


def set_up():
    pg.cleanup()
    pg.setup_distributed(config)
    return joined()


def init():
    dist.destroy_process_group()
    dist.init_process_group("gloo", rank=config.rank, world_size=config.world_size)
    return joined()


def timed(function):
    dist.barrier()
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def beside(mine, theirs, repetitions):
    pairs = [(timed(mine), timed(theirs)) for _ in range(repetitions + 1)][1:]
    seconds = [[pair[k][0] for pair in pairs] for k in (0, 1)]
    return {"seconds": seconds, "equal": pairs[-1][0][1] == pairs[-1][1][1]}


{
    "all_reduce of a tensor": beside(ours, by_hand, 20 * repetitions),
    "all_gather_object": beside(ours, gathered, 20 * repetitions),
    "init_process_group": beside(set_up, init, repetitions),
}
"""
WORK = {
    "all_reduce of a tensor": ("10 metrics beside all_reduce of a tensor", True),
    "all_gather_object": ("10 metrics beside all_gather_object", False),
    "init_process_group": ("cleanup, setup_distributed beside init_process_group", True),
}


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure three pieces of work; all are small, so `quick` has no effect."""
    exercise = catalogue.find("process_group")
    modules = {exercise.name: exercise.source("solution")[0]}
    job = Job(source=f"repetitions = {repetitions}\n{PROGRAM}", modules=modules, trace=False)
    values = local(RANKS).run(job).raise_if_failed().values
    rows = []
    for name, (work, same_algorithm) in WORK.items():
        found = [value[name] for value in values]
        # the slowest rank of each repetition, and the median of these
        mine, theirs = (
            statistics.median(max(column) for column in zip(*(one["seconds"][k] for one in found), strict=True))
            for k in (0, 1)
        )
        rows.append(Beside(f"{work}, {RANKS} ranks", mine, theirs, all(one["equal"] for one in found), same_algorithm))
    return rows
