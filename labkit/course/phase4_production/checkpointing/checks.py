"""Visible checks and hints of checkpointing: four weights, equal to the number of the step, so a wrong one is seen.

Two or three ranks save and load; one more rank keeps the files in memory, logs each operation on them, and lets some
fail. What a power failure may leave is computed from that log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from labkit.checks import Args, NotMeasurable, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.course.phase4_production.checkpointing.given import MANIFEST, Snapshot, manifest_text
from labkit.course.phase4_production.checkpointing.given.crashes import crash_states
from labkit.course.phase4_production.checkpointing.scenarios import driven

# What the checks read -------------------------------------------------------------------------------------------------


def session(
    submission: Submission,
    ranks: Ranks,
    world_size: int,
    actions: Sequence[Sequence[Any]],
    scenes: Sequence[Mapping[str, str]] = ({},),
    faults: Sequence[Mapping[str, Any]] = (),
    disk: float = 0.0,
) -> Run:
    """Do the actions on some ranks. scenes, faults: see `serve`. disk: seconds of each write."""
    group = group_of(range(world_size))
    given = [Args(list(actions), None, group) for _ in range(world_size)]
    server = {"scenes": list(scenes), "faults": list(faults)}
    given.append(Args([], server, group_of([world_size]), disk=work("disk", disk)))
    return ranks(world_size + 1).call(submission.used_by(driven), given)


def results(run: Run, number: int) -> list[Any]:
    """Return the result of an action on all ranks that train."""
    return [value[number][0] for value in run.values[:-1]]


def log_of(run: Run) -> list[dict[str, Any]]:
    return list(run.values[-1]["log"])


def files_of(run: Run) -> dict[str, str]:
    return dict(run.values[-1]["files"])


def folders(files: Mapping[str, str]) -> list[str]:
    return sorted({path.partition("/")[0] for path in files})


def checkpoint(step: int, score: float | None = None) -> dict[str, str]:
    """Return the files of a checkpoint of one rank, in hexadecimal digits."""
    snapshot = Snapshot({"weights": torch.full((4,), float(step))}, 0, 1, "full", copy=False)
    metrics = {} if score is None else {"score": score}
    texts = {
        snapshot.file: b"".join(bytes(part) for part in snapshot.parts() if isinstance(part, memoryview)),
        MANIFEST: manifest_text(step, metrics, [snapshot.describe()]),
    }
    return {f"step_{step:08}/{name}": text.hex() for name, text in texts.items()}


def with_changed_bit(files: Mapping[str, str], path: str) -> dict[str, str]:
    return {**files, path: f"{int(files[path][0], 16) ^ 1:x}{files[path][1:]}"}


# The checks -----------------------------------------------------------------------------------------------------------


@check(
    points=3, todo=1, title="one decision for all ranks", look_at="should_checkpoint: the first rank's answer, on all"
)
def decision(submission: Submission, ranks: Ranks) -> None:
    actions: list[list[Any]] = [["new", {"checkpoint_interval_minutes": 1.0}], ["should_checkpoint", 1]]
    run = session(submission, ranks, 3, actions)
    expect(results(run, 1), "answers of should_checkpoint at the start").equals([False] * 3)
    if run.trace.clock != "modelled":
        raise NotMeasurable("the rest takes a minute of virtual time, which only virtual ranks have")
    actions += [["sleep", [50.0, 50.0, 50.0]], ["should_checkpoint", 1]]
    actions += [["sleep", [0.0, 20.0, 0.0]], ["should_checkpoint", 2], ["sleep", [20.0, 20.0, 20.0]]]
    actions += [["should_checkpoint", 3]]
    run = session(submission, ranks, 3, actions)
    for number, what, wanted in (
        (3, "after 50 s of 60", False),
        (5, "after 70 s of 60 on rank 1, 50 on the first one", False),
        (7, "after 70 s of 60 on the first rank", True),
    ):
        expect(results(run, number), f"answers of should_checkpoint {what}").equals([wanted] * 3)


@check(
    points=2, todo=1, title="all ranks learn what went wrong on one", look_at="together: exchange results and errors"
)
def failure(submission: Submission, ranks: Ranks) -> None:
    run = session(submission, ranks, 3, [["new", {}], ["together", 7], ["together", 1]])
    wanted = [[0, 6 // -7], [1, 6 // -6], [2, 6 // -5]]
    expect(results(run, 1), "what `together` returns for an action that returns two numbers").equals([wanted] * 3)
    for rank, seen in enumerate(results(run, 2)):
        what = f"error of `together` on rank {rank}, for an action that divides by zero on rank 1"
        for text in ("CheckpointError", "rank 1", "ZeroDivisionError"):
            expect(str(seen), what).contains(text)


@check(points=3, todo=2, title="the newest and the best stay, and one that loads", look_at="clean: what is in `keep`")
def cleaning(submission: Submission, ranks: Ranks) -> None:
    good = {**checkpoint(1, 0.5), **checkpoint(2, 0.1), **checkpoint(3, 0.7), **checkpoint(4, 0.6), **checkpoint(5)}
    without_manifest = {path: text for path, text in checkpoint(6).items() if MANIFEST not in path}
    unfinished = {path.replace("/", ".tmp/"): text for path, text in checkpoint(7).items()}
    scenes = [
        {**good, **without_manifest, **unfinished},
        {**checkpoint(1), **with_changed_bit(checkpoint(2), "step_00000002/rank_00000.bin")},
    ]
    cases: list[tuple[int, dict[str, Any], list[int], str]] = [
        (0, {"keep_last_n": 2}, [4, 5], "keep_last_n=2; step 6 has no manifest, step 7 is unfinished"),
        (0, {"keep_last_n": 1, "metric": "score"}, [2, 5], "keep_last_n=1 and the best score at step 2"),
        (0, {"keep_last_n": 1, "metric": "score", "mode": "max"}, [3, 5], "keep_last_n=1 and the best at step 3"),
        (1, {"keep_last_n": 1}, [1, 2], "keep_last_n=1; the newest of two cannot be loaded"),
    ]
    for scene, options, wanted, what in cases:
        run = session(submission, ranks, 2, [["new", options], ["cleanup_old_checkpoints"]], [scenes[scene]])
        expect(results(run, 1), f"results of cleanup_old_checkpoints with {what}").equals([None] * 2)
        expect(folders(files_of(run)), f"folders that are left with {what}").equals([f"step_{n:08}" for n in wanted])


@check(
    points=4, todo=3, title="a checkpoint's name comes last, and all before it is synced", look_at="write: the syncs"
)
def order(submission: Submission, ranks: Ranks) -> None:
    run = session(submission, ranks, 2, [["new", {}], ["save_checkpoint", 1]])
    expect(results(run, 1), "folder that save_checkpoint returns").equals(["run/step_00000001"] * 2)
    names = sorted(path.partition("/")[2] for path in files_of(run))
    expect(names, "files of the checkpoint of 2 ranks").equals([MANIFEST, "rank_00000.bin", "rank_00001.bin"])
    sizes = {entry["path"][-14:]: len(entry["data"]) // 2 for entry in log_of(run) if entry["op"] == "write"}
    for rank in range(2):
        expect(sizes.get(f"rank_0000{rank}.bin"), f"bytes that rank {rank} writes, half of 4 float32").equals(8)
        writers = {entry["rank"] for entry in log_of(run) if entry["path"].endswith(f"rank_0000{rank}.bin")}
        expect(rank in writers, f"whether rank {rank} writes its own file").equals(True)
    log = log_of(run)
    for state in crash_states(log):
        what = f"after a power failure behind operation {state.after} of {len(log)}, {state.operation}"
        look_at = "write: the content of a file is safe after sync(file), its name after sync(folder)"
        expect(list(state.incomplete), f"incomplete checkpoints {what}", look_at=look_at).equals([])
    states = [*crash_states(log)]
    look_at = "write: a rename is safe when the folder above it is synced, which is the root, ''"
    for state in states:
        if state.after == states[-1].after:
            seen = folders(state.files)
            expect(seen, "folders after a power failure at the end", look_at=look_at).equals(["step_00000001"])


@check(points=3, todo=4, title="training goes on while a thread writes", look_at="save_async: what it waits for")
def behind(submission: Submission, ranks: Ranks) -> None:
    actions: list[list[Any]] = [["new", {}], ["save_async", 1], ["train", 99], ["busy", 20], ["save_async", 2]]
    actions += [["busy", 20], ["wait"], ["wait"]]
    run = session(submission, ranks, 1, actions, disk=0.5)
    if run.trace.clock != "modelled":
        raise NotMeasurable("it reads modelled times, which only virtual ranks have")
    for number in (1, 4):
        seconds = results(run, number)[0]
        expect(seconds, "seconds that save_async takes, with writes of 0.5 s", unit="seconds").at_most(0.1)
    for number in (6, 7):
        expect(results(run, number), "results of wait").equals([None])
    written = [entry["data"] for entry in log_of(run) if entry["op"] == "write" and "rank_" in entry["path"]]
    wanted = [text for path, text in {**checkpoint(1), **checkpoint(2)}.items() if "rank_" in path]
    expect(written, "weights that are written, in hexadecimal digits: those at the call").equals(wanted)


@check(points=2, todo=4, title="an error comes with the next call, once", look_at="wait: the error of what was written")
def late_error(submission: Submission, ranks: Ranks) -> None:
    fault = {"op": "write", "rank": 1, "errno": 28, "times": 1}
    actions: list[list[Any]] = [["new", {}], ["save_async", 1], ["save_async", 2], ["save_checkpoint", 3]]
    run = session(submission, ranks, 2, actions, faults=[fault])
    for seen in results(run, 2):
        expect(str(seen), "error of the second save_async, after rank 1's disk was full").contains("disk is full")
    expect(results(run, 3), "result of the next save_checkpoint").equals(["run/step_00000003"] * 2)


@check(points=4, todo=5, title="the newest that all ranks can read is loaded", look_at="load_first")
def loading(submission: Submission, ranks: Ranks) -> None:
    first, second = checkpoint(1), checkpoint(2)
    scenes: list[dict[str, str]] = [
        {**first, **second},
        {**first, **with_changed_bit(second, "step_00000002/rank_00000.bin")},
        {**first, **{path: text for path, text in second.items() if MANIFEST not in path}},
        with_changed_bit(second, "step_00000002/rank_00000.bin"),
        {},
    ]
    run = session(submission, ranks, 2, [["new", {}], *_loads(scenes)], scenes)
    for number, what, step in (
        (0, "of two", 2),
        (1, "with a changed bit in the newest", 1),
        (2, "without a manifest in the newest", 1),
    ):
        wanted = [[step, [float(step)] * 4]] * 2
        expect(results(run, 2 * number + 2), f"step and weights that are loaded {what}").equals(wanted)
        if number:
            text = " ".join(run.values[0][2 * number + 2][1])
            expect(text, f"warnings {what}", look_at="load_first: warnings.warn").contains("step_00000002")
    for seen in results(run, 8):
        expect(str(seen), "error when no checkpoint can be loaded").contains("CheckpointError")
    expect(results(run, 10), "result without a checkpoint: None, and weights as they were").equals(
        [[None, [-1.0] * 4]] * 2
    )
    fault = {"op": "read", "rank": 1, "errno": 5, "times": 1}
    run = session(submission, ranks, 2, [["new", {}], ["load_latest_checkpoint"]], [scenes[0]], [fault])
    what = "step and weights that are loaded if rank 1 alone cannot read the newest"
    expect(results(run, 1), what, look_at="load_first: all ranks must load the same").equals([[1, [1.0] * 4]] * 2)


def _loads(scenes: Sequence[Mapping[str, str]]) -> list[list[Any]]:
    return [action for number in range(len(scenes)) for action in (["scene", number], ["load_latest_checkpoint"])]


@check(
    points=4, todo=5, title="what is saved comes back, random numbers too", look_at="write, save_async and load_first"
)
def round_trip(submission: Submission, ranks: Ranks) -> None:
    for save in ("save_checkpoint", "save_async"):
        actions: list[list[Any]] = [["new", {}], ["draw"], [save, 3], ["draw"], ["load_latest_checkpoint"], ["draw"]]
        run = session(submission, ranks, 2, actions)
        expect(results(run, 4), f"step and weights that are loaded after {save}").equals([[3, [3.0] * 4]] * 2)
        what = f"random numbers of torch, NumPy and Python after loading, and after {save}"
        expect(results(run, 5), what).equals(results(run, 3))


HINTS = {
    1: [
        "Each rank has an answer of its own. Which one do all ranks take, and how do they learn it?",
        "`given.exchange` sends plain data to all ranks and must be called on all of them, whatever "
        "happened before. So an error may not leave `together` before it: catch it, exchange, then raise "
        "on all ranks.",
        "`given.exchange(due, self.decision_group)[0]`; in `together` exchange `[result, problem]`, where "
        "`problem` is None or `given.describe(error)`, and raise `given.failure(problems)` if there is "
        "any.",
    ],
    2: [
        "First decide what to keep, then remove all other folders. Only the first rank removes, but all "
        "must learn if that fails.",
        "Of the folders for which `given.is_complete(self.storage, folder)` is true, the first "
        "`self.keep_last_n` stay, and the first of `self.best_first(self.storage)`. Sizes may be right "
        "while contents are not: before you remove anything, one of those must be `self.newest`, or "
        "`given.is_loadable`.",
        "Within `self.together`: `old = [f for f in folders if f not in keep]`, empty if no one in `keep` "
        "is good; then `self.storage.remove(f)` for each of `given.unfinished_folders(self.storage) + "
        "old`.",
    ],
    3: [
        "Three steps, each `self.together`: a folder is made, all ranks write, the first rank writes the "
        "manifest and renames. `together` is also how a rank knows that the others have done theirs.",
        "Go through a power failure after each line. A file whose `sync` has not returned may be empty "
        "afterwards, while the folder has its new name already. And a synced file is lost if its folder "
        "does not know its name.",
        "Each rank: write, `sync(file)`. The first rank: write the manifest, `sync(manifest)`, "
        "`sync(folder + '.tmp')`, `rename`, `sync('')`.",
    ],
    4: [
        "What must be done before `save_async` returns, since training changes it at once? All the rest "
        "is the thread's.",
        "Take the snapshot, with `copy=True`, here; give it to `given.start(self.write, ...)`. Before "
        "that, wait for the one before.",
        "`self.wait()`, then `self.writing = given.start(self.write, step, snapshot, metrics)`. In `wait` "
        "set `self.writing` to None before `result()` raises.",
    ],
    5: [
        "The first rank's list counts. For each folder all ranks try to read it; either all can, or all "
        "go on to the next one.",
        "`self.together(partial(self.read, folder, components))` raises `CheckpointError` on all ranks if "
        "any of them cannot read it. Warn then, with the folder's name, and remember the problem.",
        "After success: `self.newest = folder` and `return self.loaded.apply()`. After the loop, raise if "
        "there were problems, else return None.",
    ],
}
