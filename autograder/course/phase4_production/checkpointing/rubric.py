"""Hidden rubric of checkpointing: 25 points, 8 for what comes back, 17 for crashes, errors, time and old checkpoints.

The last rank of each call is no trainer: it keeps the files in memory, runs only code of the lab, and logs each
operation. So the judge knows what was written by which rank and in which order, makes operations fail, and computes
what a power failure after each of them could leave. Those files are then loaded on other ranks. Ranks have no other
file in common.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.course.phase4_production.checkpointing.given.crashes import crash_states
from labkit.course.phase4_production.checkpointing.scenarios import Driver

FORBIDDEN = {
    "torch.distributed.checkpoint",
    "torch.save",
    "torch.load",
    "pickle",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""
ENOSPC, EROFS, EIO = 28, 30, 5


# What runs on the ranks -----------------------------------------------------------------------------------------------


def components_of(weights: Tensor, seed: int) -> dict[str, Any]:
    """Return what is trained: a module, its optimizer and scheduler, a position in the data, and a plain tensor."""
    import torch

    class Position:
        """Position in epochs of 30 samples, each in an order of its own."""

        def __init__(self) -> None:
            self.epoch, self.sample = 0, 0

        def next(self) -> list[int]:
            if self.sample == 30:
                self.epoch, self.sample = self.epoch + 1, 0
            order = torch.randperm(30, generator=torch.Generator().manual_seed(seed + self.epoch)).tolist()
            self.sample += 6
            return [int(one) for one in order[self.sample - 6 : self.sample]]

        def state_dict(self) -> dict[str, int]:
            return {"epoch": self.epoch, "sample": self.sample}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.epoch, self.sample = state["epoch"], state["sample"]

    model = torch.nn.Linear(len(weights), 1, bias=False, dtype=weights.dtype)
    with torch.no_grad():
        model.weight.copy_(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.875)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "position": Position(),
        "steps": torch.zeros(3, dtype=torch.int64),
    }


def train_step(components: dict[str, Any], data: Tensor, noisy: bool, group: Any) -> Tensor:
    """Take a step towards this rank's part of 6 samples, with noise of the generators; return all weights."""
    import random

    import numpy as np
    import torch
    import torch.distributed as dist

    samples = components["position"].next()[dist.get_rank(group) :: dist.get_world_size(group)]
    weight = components["model"].weight
    gradient = sum((weight.detach()[0] - data[one] for one in samples), torch.zeros(data.shape[1], dtype=data.dtype))
    if noisy:
        gradient += torch.rand(data.shape[1], dtype=data.dtype) + np.random.rand() + random.random()
    dist.all_reduce(gradient, group=group)
    weight.grad = (gradient / 6).reshape(1, -1)
    components["optimizer"].step()
    components["scheduler"].step()
    components["steps"] += 1
    found: Tensor = weight.detach()[0].clone()
    return found


def driven(
    actions: list[list[Any]],
    server: Any = None,
    weights: Any = None,
    data: Any = None,
    seed: int = 0,
    group: Any = None,
    mark: Any = None,
    disk: Any = None,
    noisy: bool = True,
) -> Any:
    """On a rank: do the actions one after another; return what comes of each, or the error that it raises.

    server: arguments of `serve`, on the last rank, which does that instead.
    """
    import random

    import numpy as np
    import torch
    import torch.distributed as dist

    from labkit.course.phase4_production.checkpointing.given.storage_server import serve

    if server is not None:
        return serve(dist.get_world_size() - 1, disk=disk, **server)

    class Training(Driver):
        """Trains between other actions."""

        def __init__(self) -> None:
            super().__init__(group)
            self.components = components_of(weights, seed)
            self.mark = mark

        def train(self, steps: int) -> list[Tensor]:
            return [train_step(self.components, data, noisy, group) for _ in range(steps)]

        def save_checkpoint(self, *of_step: Any) -> str | None:
            return self.saved("save_checkpoint", *of_step)

        def save_async(self, *of_step: Any) -> str | None:
            return self.saved("save_async", *of_step)

        def saved(self, name: str, step: int, *metrics: Any) -> str | None:
            result = getattr(self.checkpointer, name)(step, self.components, *metrics)
            return None if result is None else str(result)

        def load_latest_checkpoint(self) -> Any:
            return self.checkpointer.load_latest_checkpoint(self.components)

        def load_best_checkpoint(self) -> Any:
            return self.checkpointer.load_best_checkpoint(self.components)

        def weights(self) -> list[Tensor]:
            return [self.components["model"].weight.detach()[0].clone(), self.components["steps"].clone()]

        def corrupted(self) -> None:
            with torch.no_grad():
                self.components["model"].weight.fill_(float("nan"))

        def note(self, text: str) -> None:
            if self.rank == 0:
                self.storage.note(text)

    training = Training()
    torch.manual_seed(seed + training.rank)
    np.random.seed(seed + training.rank)
    random.seed(seed + training.rank)
    return training.do(actions)


# What the judge makes of it -------------------------------------------------------------------------------------------


class Session:
    """Calls on some ranks and a rank that keeps their files; a few numbers that all of them train with."""

    def __init__(self, submission: Submission, ranks: Ranks, draw: Draw) -> None:
        self.submission, self.ranks, self.draw = submission, ranks, draw
        numel = draw.randrange(7, 30)
        self.weights, self.data = draw.tensor(numel, torch.float64), draw.tensor((30, numel), torch.float64)
        self.seed = draw.randrange(10**6)

    def run(
        self,
        world_size: int,
        actions: Sequence[Sequence[Any]],
        *,
        noisy: bool = True,
        scenes: Sequence[Any] = ({},),
        faults: Sequence[Mapping[str, Any]] = (),
        disk: float = 0.0,
    ) -> Run:
        """Do the actions on `world_size` ranks. disk: seconds of each write."""
        server = {"scenes": list(scenes), "faults": list(faults)}
        group = group_of(range(world_size))
        common = {"group": group, "seed": self.seed, "noisy": noisy}
        common |= {"mark": work("mark", 0.0)}
        given = [
            Args(list(actions), None, self.weights.clone(), self.data.clone(), **common) for _ in range(world_size)
        ]
        given.append(Args([], server, group=group_of([world_size]), disk=work("disk", disk)))
        function = self.submission.used_by(driven, Driver, components_of, train_step)
        return self.ranks(world_size + 1).call(function, given)

    def trained(self, world_size: int, steps: int, noisy: bool = True) -> list[Tensor]:
        """Return the weights after each step, as one process computes them."""
        import random

        import numpy as np

        seeds = [self.seed + rank for rank in range(world_size)]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        numpys, pythons = [np.random.RandomState(seed) for seed in seeds], [random.Random(seed) for seed in seeds]
        weights, momentum, found = self.weights.clone(), torch.zeros_like(self.weights), []
        for step in range(steps):
            epoch, place = divmod(step, 5)
            order = torch.randperm(30, generator=torch.Generator().manual_seed(self.seed + epoch)).tolist()
            gradient = 6 * weights - self.data[order[6 * place : 6 * place + 6]].sum(0)
            for torchs, numpy, python in zip(generators, numpys, pythons, strict=True):
                if noisy:
                    gradient += torch.rand(len(weights), generator=torchs, dtype=torch.float64)
                    gradient += numpy.rand() + python.random()
            momentum = 0.5 * momentum + gradient / 6
            weights = weights - 0.25 * 0.875**step * momentum
            found.append(weights)
        return found


def results(run: Run, number: int) -> list[Any]:
    """Return the result of an action on all trainers."""
    return [value[number][0] if isinstance(value, list) and len(value) > number else None for value in run.values[:-1]]


def warned(run: Run, number: int) -> list[str]:
    """Return the warnings of an action on all trainers."""
    return [" ".join(value[number][1]) for value in run.values[:-1]]


def log_of(run: Run) -> list[dict[str, Any]]:
    """Return the operations on files, in their order."""
    return list(run.values[-1]["log"])


def files_of(run: Run) -> dict[str, str]:
    """Return the files at the end: by path, in hexadecimal digits."""
    return dict(run.values[-1]["files"])


def folders_in(files: Mapping[str, str]) -> list[str]:
    return sorted({path.partition("/")[0] for path in files})


def flipped(files: Mapping[str, str], folder: str, pattern: str, draw: Draw) -> dict[str, str]:
    """Return the files with one digit changed, in a file of the folder whose name has the pattern."""
    path = draw.choice([one for one in sorted(files) if one.startswith(f"{folder}/") and re.search(pattern, one)])
    place = draw.randrange(len(files[path]))
    digit = f"{int(files[path][place], 16) ^ 1:x}"
    return {**files, path: files[path][:place] + digit + files[path][place + 1 :]}


def torn(files: Mapping[str, str], folder: str, pattern: str, draw: Draw) -> dict[str, str]:
    """Return the files with the end of one cut off."""
    path = draw.choice([one for one in sorted(files) if one.startswith(f"{folder}/") and re.search(pattern, one)])
    return {**files, path: files[path][: len(files[path]) // 4 * 2]}


# What comes back ------------------------------------------------------------------------------------------------------


@check(points=3, todo=5, title="a resumed run equals the uninterrupted one, to the last bit", look_at="load_first")
def resumes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    session = Session(submission, ranks, draw)
    world_size, before, after = draw.choice([2, 3]), draw.choice([3, 7]), 6
    actions: list[list[Any]] = [["new", {}], ["train", before], ["save_checkpoint", before], ["train", after]]
    run = session.run(world_size, actions)
    wanted = session.trained(world_size, before + after)
    for number, part in ((1, wanted[:before]), (3, wanted[before:])):
        for rank, seen in enumerate(results(run, number)):
            expect(seen[-1], f"weights of rank {rank} without an interruption").close_to(part[-1], rel=1e-9)
    ranks.renew()
    again = session.run(world_size, [["new", {}], ["load_latest_checkpoint"], ["train", after]], scenes=[files_of(run)])
    expect(results(again, 1), "steps that load_latest_checkpoint returns").equals([before] * world_size)
    for rank, (seen, one) in enumerate(zip(results(again, 2), results(run, 3), strict=True)):
        for step, (mine, other) in enumerate(zip(seen, one, strict=True)):
            expect(mine, f"weights of rank {rank}, {step + 1} steps after resuming at {before}").equals(other)


@check(points=3, todo=5, title="another number of ranks goes on, in both formats", look_at="write: snapshot.file")
def other_world_size(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    session = Session(submission, ranks, draw)
    before, after = draw.choice([2, 6]), 3
    first, *others = draw.choice([[2, 3, 1], [3, 2, 4], [4, 2, 3]])
    wanted = session.trained(1, before + after, noisy=False)
    for form, second in zip(draw.sample(["sharded", "full"], 2), others, strict=True):
        actions: list[list[Any]] = [["new", {"format": form}], ["train", before], ["save_checkpoint", before]]
        run = session.run(first, actions, noisy=False)
        ranks.renew()
        actions = [["new", {}], ["load_latest_checkpoint"], ["train", after]]
        again = session.run(second, actions, noisy=False, scenes=[files_of(run)])
        what = f"format {form!r}, saved on {first} ranks, loaded on {second}"
        expect(results(again, 1), f"steps: {what}").equals([before] * second)
        seen = [one[-1] for one in results(again, 2)]
        expect(seen, f"weights {after} steps later: {what}").close_to([wanted[-1]] * second, rel=1e-9)


@check(points=2, todo=3, title="each rank writes its part of the bytes", look_at="write: every rank writes its file")
def bytes_of_each_rank(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    session = Session(submission, ranks, draw)
    world_size = draw.choice([2, 3, 4])
    numel = 600 * draw.randrange(4, 8)
    session.weights, session.data = draw.tensor(numel, torch.float64), draw.tensor((30, numel), torch.float64)
    total = 2 * 8 * numel + 24  # weights, momentum and the number of steps
    for form in ("sharded", "full"):
        run = session.run(world_size, [["new", {"format": form}], ["train", 1], ["save_checkpoint", 1]])
        written = [0] * world_size
        for one in log_of(run):
            if one["op"] == "write" and "manifest" not in one["path"]:
                written[one["rank"]] += len(one["data"]) // 2
        expect(sum(written), f"bytes of tensors in all files, format {form!r}").equals(total)
        share = total / world_size if form == "sharded" else total
        expect(max(written), f"bytes of tensors by the rank that writes most, format {form!r}").at_most(share + 16)
        for rank, nbytes in enumerate(written):
            expect(run.trace.bytes_sent(rank), f"bytes that rank {rank} sends to the storage").at_least(nbytes)


# Crashes --------------------------------------------------------------------------------------------------------------


@check(points=4, todo=5, title="a crash after any operation leaves a checkpoint that loads", look_at="write and clean")
def crashes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    session = Session(submission, ranks, draw)
    world_size, saves = 2, [2, 5]
    actions: list[list[Any]] = [["new", {"keep_last_n": 1}]]
    for before, step in zip([0, *saves], saves, strict=False):
        actions += [["train", step - before], ["save_checkpoint", step], ["note", f"saved {step}"]]
    run = session.run(world_size, actions)
    wanted = {step: weights for step, weights in enumerate(session.trained(world_size, saves[-1]), 1)}
    log = log_of(run)
    returned = {int(one["path"].split()[1]): number for number, one in enumerate(log, 1) if one["op"] == "note"}
    expect(sorted(returned), "steps after which save_checkpoint returned").equals(saves)
    states: dict[Any, Any] = {}
    for state in crash_states(log):
        least = max((step for step, after in returned.items() if after <= state.after), default=None)
        states.setdefault((least, *sorted(state.files.items())), state)
    expect(len(states), "states that a crash can leave").at_least(10)
    actions = [["new", {}]]
    for number in range(len(states)):
        actions += [["scene", number], ["corrupted"], ["load_latest_checkpoint"], ["weights"]]
    ranks.renew()
    again = session.run(world_size, actions, scenes=[state.files for state in states.values()])
    for number, ((least, *_), state) in enumerate(states.items()):
        where = f"after a power failure behind operation {state.after}, {state.operation}"
        seen = results(again, 4 * number + 3)
        for rank, step in enumerate(seen):
            if least is None and not (type(step) is int and step in saves):
                continue  # nothing was saved yet
            told = f"step that rank {rank} loads {where}, when that of step {least} was saved"
            expect(step if type(step) is int else str(step), told).is_one_of(*(s for s in saves if s >= (least or 0)))
            values = results(again, 4 * number + 4)[rank]
            expect(values[0], f"weights of rank {rank} {where}").close_to(wanted[step], rel=1e-9)
        expect(len(set(map(str, seen))), f"different steps that the ranks load {where}").equals(1)


@check(
    points=2, todo=4, title="only what is complete ever has a checkpoint's name", look_at="write: the order of syncs"
)
def complete_names(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    session = Session(submission, ranks, draw)
    world_size = draw.choice([1, 2, 3])
    save = draw.choice(["save_checkpoint", "save_async"])
    actions: list[list[Any]] = [["new", {}], ["train", 1], [save, 1], ["train", 1], [save, 2], ["wait"]]
    run = session.run(world_size, actions)
    expect(folders_in(files_of(run)), "folders at the end").equals(["step_00000001", "step_00000002"])
    for state in crash_states(log_of(run)):
        where = f"after a power failure behind operation {state.after}, {state.operation}"
        expect(list(state.incomplete), f"incomplete checkpoints {where}").equals([])


@check(points=2, todo=5, title="a torn or corrupt checkpoint is skipped by all ranks, and named", look_at="load_first")
def skips(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    session = Session(submission, ranks, draw)
    world_size = draw.choice([2, 3])
    actions: list[list[Any]] = [["new", {}], ["train", 1], ["save_checkpoint", 1], ["train", 1], ["save_checkpoint", 2]]
    run = session.run(world_size, actions)
    files, newest = files_of(run), "step_00000002"
    data, manifest = "rank_", "manifest"
    path = f"{newest}/{sorted(p for p in files if newest in p and data in p)[0].split('/')[1]}"
    scenes = [
        flipped(files, newest, data, draw),
        torn(files, newest, manifest, draw),
        {name: content for name, content in files.items() if name != path},
        files,
    ]
    one = draw.randrange(world_size)
    actions = [["new", {}]]
    for number in range(4):
        actions += [["scene", number], ["corrupted"], ["load_latest_checkpoint"], ["weights"]]
    ranks.renew()
    # the last scene is intact, but one rank cannot read it: of the reads before, none fails
    for faults, chosen in (((), range(3)), ([{"op": "read", "rank": one, "errno": EIO, "times": 1}], [3])):
        some = [actions[0], *(a for n in chosen for a in actions[4 * n + 1 : 4 * n + 5])]
        again = session.run(world_size, some, scenes=scenes, faults=faults)
        wanted = session.trained(world_size, 1)[-1]
        for place, number in enumerate(chosen):
            what = ("with a changed bit", "whose manifest is torn", "with a missing file", "that one rank cannot read")
            told = f"beside a newer one {what[number]}"
            expect(results(again, 4 * place + 3), f"steps that are loaded {told}").equals([1] * world_size)
            seen = [values[0] for values in results(again, 4 * place + 4)]
            expect(seen, f"weights {told}").close_to([wanted] * world_size, rel=1e-9)
            texts = " ".join(warned(again, 4 * place + 3))
            expect(texts, f"warnings {told}").contains(newest)


@check(points=2, todo=5, title="if one rank cannot write, all raise, and nothing is lost", look_at="together")
def failing_rank(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    session = Session(submission, ranks, draw)
    world_size = draw.choice([2, 3])
    actions: list[list[Any]] = [["new", {}], ["train", 1], ["save_checkpoint", 1], ["train", 1], ["save_checkpoint", 2]]
    actions += [["load_latest_checkpoint"], ["train", 1], ["save_checkpoint", 2], ["load_latest_checkpoint"]]
    one = draw.randrange(1, world_size)
    # the first save writes one file on this rank, which works
    cases = [("write", one, ENOSPC, "disk is full"), ("rename", 0, EROFS, "read-only")]
    for op, rank, number, text in cases:
        before = session.run(world_size, actions[:3])
        ranks.renew()
        fault = {"op": op, "rank": rank, "errno": number, "times": 1}
        more = [actions[0], ["load_latest_checkpoint"], *actions[3:]]
        run = session.run(world_size, more, scenes=[files_of(before)], faults=[fault])
        told = f"while {op} of rank {rank} fails"
        for seen in results(run, 3):
            expect(str(seen), f"error of save_checkpoint {told}").contains("CheckpointError")
            expect(str(seen), f"error of save_checkpoint {told}").contains(f"rank {rank}")
            expect(str(seen), f"error of save_checkpoint {told}").contains(text)
        expect(results(run, 4), f"steps that are loaded after a save {told}").equals([1] * world_size)
        expect(results(run, 7), "steps that are loaded after the next save").equals([2] * world_size)


# Decisions and old checkpoints ----------------------------------------------------------------------------------------


@check(points=2, todo=4, title="one decision for all ranks, by the interval", look_at="should_checkpoint")
def decisions(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    session = Session(submission, ranks, draw)
    world_size, minutes = draw.choice([2, 3]), draw.choice([1.0, 2.5, 30.0])
    seconds = 60 * minutes
    slow = [[0.0, *[seconds] * (world_size - 1)], [seconds, *[0.0] * (world_size - 1)]]
    actions: list[list[Any]] = [["new", {"checkpoint_interval_minutes": minutes}], ["should_checkpoint", 1]]
    actions += [["sleep", [0.9 * seconds] * world_size], ["should_checkpoint", 2]]
    # clocks differ: those of the others, or that of the first rank, have the interval behind them
    ahead = draw.choice(slow)
    actions += [["sleep", [0.2 * one for one in ahead]], ["should_checkpoint", 3]]
    actions += [["sleep", [0.2 * seconds] * world_size], ["should_checkpoint", 4]]
    actions += [["save_checkpoint", 4], ["should_checkpoint", 5], ["sleep", [1.1 * seconds] * world_size]]
    actions += [
        ["should_checkpoint", 4],
        ["should_checkpoint", 6],
        ["save_async", 6],
        ["should_checkpoint", 7],
        ["wait"],
    ]
    run = session.run(world_size, actions)
    for number, step, wanted in ((1, 1, False), (3, 2, False), (7, 4, True), (9, 5, False), (11, 4, False)):
        expect(results(run, number), f"answers for step {step}").equals([wanted] * world_size)
    expect(results(run, 12), "answers for step 6, after another interval").equals([True] * world_size)
    expect(results(run, 14), "answers for step 7, right after save_async").equals([False] * world_size)
    seen = results(run, 5)
    expect(len(set(map(str, seen))), f"different answers for step 3, where clocks differ: {seen}").equals(1)


@check(points=2, todo=5, title="the newest and the best stay, and one that loads always", look_at="clean")
def cleaning(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    session = Session(submission, ranks, draw)
    world_size, keep, mode = 2, draw.choice([1, 2]), draw.choice(["min", "max"])
    best, count = draw.choice([1, 2]), 5
    losses = {step: float(step) if step == best else 10.0 + step for step in range(1, count + 1)}
    options = {"keep_last_n": keep, "metric": "score", "mode": mode}
    actions: list[list[Any]] = [["new", options]]
    sign = 1 if mode == "min" else -1
    for step in range(1, count + 1):
        actions += [["train", 1], ["save_checkpoint", step, {"score": sign * losses[step], "other": -1.0}]]
    run = session.run(world_size, [*actions, ["load_best_checkpoint"]])
    names = {step: f"step_{step:08}" for step in range(1, count + 1)}
    wanted = sorted({names[best], *(names[step] for step in range(count - keep + 1, count + 1))})
    files = files_of(run)
    what = f"folders after {count} saves with keep_last_n={keep} and the best at {best}"
    expect(folders_in(files), what).equals(wanted)
    expect(results(run, 2 * count + 1), "step of load_best_checkpoint").equals([best] * world_size)
    # what a crash left, and newer ones of which none loads: another job begins here
    wrong = {path.replace(names[count], "step_00000007"): text for path, text in files.items() if names[count] in path}
    left = {"step_00000009.tmp/rank_00000.bin": "00", "step_00000008/rank_00000.bin": "00"}
    broken = flipped({**files, **wrong, **left}, "step_00000007", "rank_", draw)
    ranks.renew()
    actions = [["new", {"keep_last_n": 1}], ["cleanup_old_checkpoints"], ["load_latest_checkpoint"]]
    again = session.run(world_size, actions, scenes=[broken])
    told = "after cleanup_old_checkpoints, keep_last_n=1, with a newest checkpoint that is corrupt"
    expect(results(again, 2), f"step that loads {told}").equals([count] * world_size)
    again = session.run(world_size, [*actions[:1], actions[2], actions[1]], scenes=[{**files, **left}])
    expect(folders_in(files_of(again)), "folders after cleaning up, keep_last_n=1").equals([names[count]])


# Behind training ------------------------------------------------------------------------------------------------------


@check(
    points=2,
    todo=5,
    title="save_async saves that moment, while training goes on",
    look_at="save_async: the copy, the thread",
)
def behind(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    session = Session(submission, ranks, draw)
    world_size, step, disk = 2, draw.choice([2, 3]), draw.choice([0.5, 1.0])
    actions: list[list[Any]] = [["new", {}], ["train", step], ["mark"], ["save_async", step], ["mark"]]
    actions += [["train", 2], ["busy", 50], ["mark"], ["wait"], ["mark"], ["load_latest_checkpoint"], ["weights"]]
    run = session.run(world_size, actions, disk=disk)
    expect(results(run, 10), "step that was saved").equals([step] * world_size)
    wanted = session.trained(world_size, step)[-1]
    seen = [values[0] for values in results(run, 11)]
    expect(seen, "weights that were saved, those at the call of save_async").close_to([wanted] * world_size, rel=1e-9)
    for rank in range(world_size):
        before, after, done, waited = (event.start for event in run.trace.events if _is_mark(event, rank))
        expect(after - before, f"seconds that rank {rank} stands still in save_async", unit="seconds").at_most(0.1)
        told = f"seconds of 50 steps of 0.1 on rank {rank}, while writing takes {disk} for each file"
        expect(done - after, told, unit="seconds").at_most(5.1)
        expect(waited - done, f"seconds that rank {rank} waits at the end", unit="seconds").at_most(0.1)


def _is_mark(event: Any, rank: int) -> bool:
    return bool(event.rank == rank and event.operation == "mark")


@check(points=1, todo=5, title="one is written at a time, and its error comes with the next call", look_at="wait")
def one_at_a_time(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    session = Session(submission, ranks, draw)
    world_size = draw.choice([2, 3])
    actions: list[list[Any]] = [
        ["new", {}],
        ["train", 1],
        ["save_async", 1],
        ["train", 1],
        ["save_async", 2],
        ["wait"],
        ["wait"],
    ]
    run = session.run(world_size, actions, disk=0.5)
    for number in (2, 4, 5, 6):
        expect(results(run, number), f"results of {actions[number][0]}").equals([None] * world_size)
    order = [one["path"].partition(".tmp")[0] for one in log_of(run) if one["op"] in ("make_folder", "rename")]
    wanted = ["step_00000001", "step_00000001", "step_00000002", "step_00000002"]
    expect(order, "folders that are begun and renamed, in this order").equals(wanted)
    # not rank 0: its own errors it raises also where it alone writes
    one = draw.randrange(1, world_size)
    following = draw.choice(["save_async", "save_checkpoint", "wait", "load_latest_checkpoint"])
    fault = {"op": "write", "rank": one, "errno": ENOSPC, "times": 1}
    more = [2] if following.startswith("save") else []
    actions = [["new", {}], ["train", 1], ["save_async", 1], ["busy", 20], [following, *more], ["wait"]]
    actions += [["save_checkpoint", 3]]
    run = session.run(world_size, actions, faults=[fault])
    expect(results(run, 2), "results of save_async whose write fails later").equals([None] * world_size)
    for seen in results(run, 4):
        expect(str(seen), f"error of {following}, called after a save_async that could not write").contains(
            "disk is full"
        )
    expect(results(run, 5), "results of wait after that error was raised").equals([None] * world_size)
    expect(["Error" in str(seen) for seen in results(run, 6)], "errors of the next save").equals([False] * world_size)
