"""Part of solutions.py: exercise 20's checkpointer compared with torch.distributed.checkpoint (DCP), on 2 local ranks.

Both save and load a model that all ranks have alike and its Adam state, on the same file system, and sync the files;
the solution also has checksums, which it verifies, and syncs folders. None is removed. The stall is the time until
`save_async` and DCP's `async_save` return. Runs alternate; the time is the slowest rank's. The work names the bytes of
both on disk.
"""

from __future__ import annotations

import statistics

from beside import Beside

from labkit import Job, catalogue, local

RANKS = 2
PROGRAM = """
import os, shutil, tempfile, time, warnings
import torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from labkit.exercises import checkpointing

warnings.filterwarnings("ignore")
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
names = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
dist.broadcast_object_list(names)
folder = names[0]
model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)])
optimizer = torch.optim.Adam(model.parameters())
for parameter in model.parameters():
    parameter.grad = torch.ones_like(parameter)
optimizer.step()
components = {"model": model, "optimizer": optimizer}
checkpointer = checkpointing.DistributedCheckpointer(f"{folder}/mine", 2 * repetitions + 2)  # DCP removes none
background = dist.new_group(backend="gloo")


def state():
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def timed(function):
    dist.barrier()
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def size(name):
    return sum(os.path.getsize(os.path.join(root, f)) for root, _, files in os.walk(f"{folder}/{name}") for f in files)


seconds, equal = {"save": ([], []), "load": ([], []), "stall": ([], [])}, []
for step in range(repetitions + 1):
    theirs = f"{folder}/theirs{step}"
    seconds["save"][0].append(timed(lambda: checkpointer.save_checkpoint(2 * step, components))[0])
    seconds["save"][1].append(timed(lambda: dcp.save(state(), checkpoint_id=theirs))[0])
    wanted, loaded = [p.detach().clone() for p in model.parameters()], state()
    seconds["load"][0].append(timed(lambda: checkpointer.load_latest_checkpoint(components))[0])
    seconds["load"][1].append(timed(lambda: dcp.load(loaded, checkpoint_id=theirs))[0])
    equal.append(all(map(torch.equal, wanted, model.parameters())))
    equal.append(all(torch.equal(loaded["model"][name], value) for name, value in model.state_dict().items()))
    seconds["stall"][0].append(timed(lambda: checkpointer.save_async(2 * step + 1, components))[0])
    checkpointer.wait()
    save = lambda: dcp.async_save(state(), checkpoint_id=f"{theirs}a", process_group=background)
    seconds["stall"][1].append((found := timed(save))[0])
    found[1].result()
dist.barrier()
sizes = [size("mine/step_00000000"), size("theirs0")]
dist.barrier()
if dist.get_rank() == 0:
    shutil.rmtree(folder)
[{name: [one[1:] for one in both] for name, both in seconds.items()}, all(equal), sizes]
"""


def measure(repetitions: int, quick: bool) -> list[Beside]:
    """Measure saves, loads and stalls."""
    exercise = catalogue.find("checkpointing")
    job = Job(
        source=f"width, repetitions = {64 if quick else 1500}, {repetitions}\n{PROGRAM}",
        modules={exercise.name: exercise.source("solution")[0]},
        trace=False,
    )
    run = local(nproc_per_node=RANKS).run(job).raise_if_failed()
    sizes = " and ".join(f"{nbytes / 1e6:.1f}" for nbytes in run.values[0][2])
    found = []
    for name in ("save", "load", "stall"):
        mine, theirs = (max(statistics.median(value[0][name][who]) for value in run.values) for who in (0, 1))
        equal = all(value[1] for value in run.values)
        what = {"save": "save", "load": "load", "stall": "stall of an asynchronous save"}[name]
        found.append(
            Beside(f"{what}, {sizes} MB on disk, {RANKS} ranks; DCP", mine, theirs, equal, same_algorithm=True)
        )
    return found
