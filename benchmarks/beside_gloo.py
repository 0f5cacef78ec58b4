"""Collectives of an exercise compared with gloo's, on 4 local ranks, for the parts of solutions.py.

A time is the slowest rank's, measured from a barrier, in the fastest repetition: others waited for the machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from beside import Beside

from labkit import Job, catalogue, local

RANKS = 4
PROGRAM = """
import time
import torch, torch.distributed as dist
from labkit import exercises

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()


def library_all_gather(tensor):
    rows = tensor.new_empty((world_size, *tensor.shape))
    dist.all_gather_into_tensor(rows.view(-1), tensor)
    return rows


def in_place(function, *arguments):
    def run(tensor):
        function(tensor, *arguments)
        return tensor

    return run


module = getattr(exercises, exercise)
ours = {name: getattr(module, name) for name in functions}
for name in ours.keys() & {"broadcast", "reduce"}:
    ours[name] = in_place(ours[name], 0)
library = {
    "broadcast": in_place(dist.broadcast, 0), "reduce": in_place(dist.reduce, 0), "all_gather": library_all_gather
}


def timed(function):
    tensor = torch.arange(numel, dtype=torch.float32) % 1000 + rank
    dist.barrier()
    began = time.perf_counter()
    result = function(tensor)
    return time.perf_counter() - began, result


found = {}
for name, function in ours.items():
    peer = library.get(name, in_place(dist.all_reduce))
    pairs = [(timed(function), timed(peer)) for _ in range(repetitions + 1)][1:]
    (_, mine), (_, theirs) = pairs[-1]
    equal = torch.equal(mine, theirs) or (name == "reduce" and rank != 0)
    found[name] = {"seconds": [[pair[k][0] for pair in pairs] for k in (0, 1)], "equal": equal}
found
"""


def beside_gloo(name: str, functions: Sequence[str], repetitions: int, quick: bool) -> list[Beside]:
    """Measure functions of an exercise, each beside gloo's collective, on a small tensor and on a large one."""
    exercise = catalogue.find(name)
    modules = {exercise.name: exercise.source("solution")[0]}
    rows = []
    for numel, size in ((1_000, "4 kB"),) if quick else ((1_000, "4 kB"), (1_000_000, "4 MB")):
        given = {"exercise": name, "functions": tuple(functions), "numel": numel, "repetitions": repetitions}
        source = "".join(f"{key} = {value!r}\n" for key, value in given.items()) + PROGRAM
        run = local(RANKS).run(Job(source=source, modules=modules, trace=False)).raise_if_failed()
        for function in run.values[0]:
            of_ranks = [value[function] for value in run.values]
            mine, theirs = (
                min(max(times) for times in zip(*(rank["seconds"][who] for rank in of_ranks), strict=True))
                for who in (0, 1)
            )
            equal = all(rank["equal"] for rank in of_ranks)
            rows.append(Beside(f"{function}, {size}, {RANKS} ranks", mine, theirs, equal, function == "broadcast"))
    return rows
