"""Visible checks and hints of process_group, in the order of its TODOs.

The programs of `scenarios`, and `joins`, run on the ranks: each uses your module as a training script would.
"""

from __future__ import annotations

from typing import Any

import torch

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, work
from labkit.course.phase1_data_parallel.process_group.scenarios import comes_and_goes, reads, takes_turns

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@check(
    points=3,
    todo=1,
    title="from_env reads rank, world size and local rank",
    look_at="which variable each field comes from, and that each is a whole number",
)
def from_env(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    rank, local_rank = draw.randrange(4, 8), draw.randrange(4)
    variables = TORCHRUN | {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}
    run = ranks(1).call(submission.used_by(reads, joined=False), [Args([(variables, {})])])
    (found,) = run.values[0]
    seen = found if len(found) == 2 else dict(zip(("rank", "world_size", "local_rank"), found, strict=False))
    expect(seen, f"RANK={rank}, WORLD_SIZE=8, LOCAL_RANK={local_rank}").equals(
        {"rank": rank, "world_size": 8, "local_rank": local_rank}
    )


@check(
    points=3,
    todo=1,
    title="a variable that is missing, or no number, is named",
    look_at="what os.environ has, before anything is read",
)
def missing(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    absent = draw.choice(["RANK", "WORLD_SIZE", "LOCAL_RANK"])
    number = "what int() raises for the text: catch that, and raise a ValueError with the variable's name and its text"
    cases: list[tuple[str, dict[str, str | None], list[str], str]] = [
        (f"without {absent}", {absent: None}, [absent], ""),
        ("without RANK and MASTER_ADDR", {"RANK": None, "MASTER_ADDR": None}, ["RANK", "MASTER_ADDR"], ""),
        ("with WORLD_SIZE=four", {"WORLD_SIZE": "four"}, ["WORLD_SIZE", "four"], number),
    ]
    for case, change, named, look_at in cases:
        run = ranks(1).call(submission.used_by(reads, joined=False), [Args([({**TORCHRUN, **change}, {})])])
        (found,) = run.values[0]
        raised, message = found if len(found) == 2 else ("no error", "")
        expect(raised, f"{case} it raises", look_at=look_at).equals("ValueError")
        for name in named:
            expect(message, f"the message of the ValueError {case}", look_at=look_at).contains(name)


def joins(another: dict[str, int]) -> Any:
    """Set up twice as a notebook's cell does, sum all rank numbers, and set up with `another` value of a field."""
    import dataclasses

    import torch
    import torch.distributed as dist

    from labkit.exercises import process_group

    config = process_group.DDPConfig.from_env(backend="gloo")
    device = process_group.setup_distributed(config)
    process_group.setup_distributed(config)
    number = torch.tensor(dist.get_rank() + 1.0, device=device)
    dist.all_reduce(number)
    found = [str(device), dist.get_backend(), dist.get_rank(), dist.get_world_size(), number.item()]
    try:
        process_group.setup_distributed(dataclasses.replace(config, **another))
    except ValueError:
        return [*found, "ValueError"]
    return [*found, "no error"]


@check(
    points=3,
    todo=2,
    title="setup_distributed makes one group of all ranks",
    look_at="what init_process_group is given; if a group exists, its rank and size beside the config's",
)
def setup(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    field, by = draw.choice(["rank", "world_size"]), draw.randrange(1, 4)
    given = [{"rank": (rank + by) % 4} if field == "rank" else {"world_size": 4 + by} for rank in range(4)]
    run = ranks(4).call(submission.used_by(joins, joined=False), [Args(another) for another in given])
    what = "device, backend, rank, world size, and the sum of 1 to 4"
    expect([value[:-1] for value in run.values], what).equals([["cpu", "gloo", rank, 4, 10.0] for rank in range(4)])
    for rank, another in enumerate(given):
        what = f"rank {rank} of 4: setup_distributed raises, where a group exists, for a config with {another}"
        expect(run.values[rank][-1], what).equals("ValueError")


@check(
    points=3,
    todo=2,
    title="cleanup may be called twice, and the group made again",
    look_at="what setup_distributed remembers of a group that has ended",
)
def cleanup(submission: Submission, ranks: Ranks) -> None:
    run = ranks(2).call(submission.used_by(comes_and_goes, joined=False), lambda rank: Args(0))
    seen = [[exists for first, _, last in groups for exists in (first, last)] for groups in run.values]
    expect(seen, "a group exists: after setup, after cleanup, twice").equals([[True, False, True, False]] * 2)


@check(
    points=3,
    todo=3,
    title="rank_zero_first: rank 0 has ended its block before the others begin",
    look_at="on which side of its yield each rank comes to the barrier, and to which group's",
)
def order(submission: Submission, ranks: Ranks) -> None:
    run = ranks(3).call(submission.used_by(takes_turns), lambda rank: Args(work("turn", 0.05)))
    (_, ended, _), *others = run.values
    for rank, (began, _, _) in enumerate(others, 1):
        what = f"seconds from the end of rank 0's block to the beginning of rank {rank}'s (negative: too early)"
        expect(began - ended, what).at_least(0.0)
    # rank 1 is the first of these two; the other ranks are not in the group
    given = [Args(work("turn", 0.05), group=group_of([1, 2]), takes_part=rank in (1, 2)) for rank in range(4)]
    run = ranks(4).call(submission.used_by(takes_turns), given)
    what = "seconds from the end of rank 1's block to the beginning of rank 2's, in a group of these two"
    expect(run.values[2][0] - run.values[1][1], what).at_least(0.0)


@check(
    points=3,
    todo=3,
    title="rank_zero_first: a block that fails on rank 0 leaves nobody waiting",
    look_at="whether rank 0 comes to the barrier when an exception goes through its yield",
)
def failing(submission: Submission, ranks: Ranks) -> None:
    errors = ["the download failed", "", ""]
    run = ranks(3).call(submission.used_by(takes_turns), lambda rank: Args(work("turn", 0.05), errors[rank]))
    expect([value[-1] for value in run.values], "result of the block").equals(["the download failed", "fine", "fine"])


@check(
    points=3,
    todo=4,
    title="all_reduce_metrics: the same means on every rank",
    look_at="what is added up, and in which dtype; by what it is divided; the order of names; ranks of weight 0",
)
def means(submission: Submission, ranks: Ranks) -> None:
    # losses 1, 10, 100, 1000: the mean shows whose is missing
    run = ranks(4).call(
        submission.all_reduce_metrics, lambda rank: Args({"loss": 10.0**rank, "accuracy": torch.tensor(rank / 4)})
    )
    for rank, metrics in enumerate(run.values):
        expect(metrics, f"rank {rank} has, of the losses 1, 10, 100, 1000").equals({"loss": 277.75, "accuracy": 0.375})
    names = (["a", "b"], ["b", "a"])
    run = ranks(2).call(
        submission.all_reduce_metrics, lambda rank: Args({name: {"a": 1.0, "b": 5.0}[name] for name in names[rank]})
    )
    for rank, metrics in enumerate(run.values):
        what = f"rank {rank} has, where all have a=1 and b=5, in another order"
        expect(metrics, what).equals({"a": 1.0, "b": 5.0})
    losses, weights = [2.0, 8.0, float("nan")], [10.0, 30.0, 0.0]
    run = ranks(3).call(submission.all_reduce_metrics, lambda rank: Args({"loss": losses[rank]}, weight=weights[rank]))
    for rank, metrics in enumerate(run.values):
        expect(metrics, f"rank {rank} has, of 2 for 10 samples, 8 for 30, nan for none").equals({"loss": 6.5})
    # float32 has 24 bits: integers are exact up to 16,777,216
    run = ranks(2).call(submission.all_reduce_metrics, lambda rank: Args({"samples": 100_000_001}))
    expect(run.values, "what the ranks have, where both count 100000001 samples").equals(
        [{"samples": 100_000_001.0}] * 2
    )


@check(
    points=4,
    todo=4,
    title="all_reduce_metrics: one collective, however many metrics",
    look_at="how many tensors are sent: one holds all the sums",
)
def one_collective(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    names = [f"metric {number}" for number in range(draw.randrange(5, 9))]
    run = ranks(4).call(submission.all_reduce_metrics, lambda rank: Args(dict.fromkeys(names, float(rank))))
    for rank in range(4):
        expect(run.values[rank], f"rank {rank} has, of {len(names)} metrics 0, 1, 2, 3").equals(
            dict.fromkeys(names, 1.5)
        )
        called = [event.operation for event in run.trace.collectives(rank)]
        expect(len(called), f"collectives that rank {rank} called for {len(names)} metrics").equals(1)


HINTS = {
    1: [
        "An error that names one missing variable at a time has to be met three times. So look for all of them "
        "before you read any.",
        "The names to look for are `[*numbers.values(), *address]`: collect those that are `not in os.environ`. "
        "When a text is no number, int() raises \"invalid literal for int(): 'four'\", which does not name the "
        "variable: catch that, and raise an error that does.",
        "`missing = [name for name in (*numbers.values(), *address) if name not in os.environ]`; if there are any, "
        "raise a ValueError with `', '.join(missing)`. Then, for `field, name` in `numbers.items()`: in a `try`, "
        '`fields[field] = int(os.environ[name])`; on ValueError raise `ValueError(f"{name} must be a whole number, '
        'got {os.environ[name]!r}")`.',
    ],
    2: [
        "The function may be called twice, and again after cleanup(). A variable of your own that remembers the "
        "group would still remember it after cleanup(). Who knows whether there is a group now?",
        "Three cases: no group and backend mpi; no group and any other backend; a group. `dist.is_initialized()` "
        "separates them, and `dist.get_rank()` and `dist.get_world_size()` are to be compared with the config.",
        "`dist.init_process_group(config.backend, init_method=config.init_method, rank=config.rank, "
        "world_size=config.world_size)`, for mpi only the backend. If there is a group: raise ValueError when "
        "`(dist.get_rank(), dist.get_world_size()) != (config.rank, config.world_size)`.",
    ],
    3: [
        "A barrier opens when every rank has come to it once. The others must not begin until rank 0 has ended its "
        "block. So where does rank 0 come to the barrier, and where do the others?",
        "Rank 0 comes after its block, the others before theirs: they wait there until rank 0 is done. A block that "
        "raises does so at the `yield`, and what has to happen all the same belongs under `finally`.",
        "`first = is_main_process(group)`; `if not first: barrier(group)`; then `try: yield`, and in its `finally:` "
        "`if first: barrier(group)`.",
    ],
    4: [
        "Two ranks have means 2 and 8 over 10 and 30 samples. Which sums over the ranks do you need for the mean "
        "over all 40 samples? How can all of them travel in one tensor?",
        "Every rank sends `weight * value` for each metric and, as one more element at the end, its `weight`. After "
        "one all_reduce all ranks have the sums; divide all but the last by the last. `nan * 0` is nan, so a rank "
        "of weight 0 sends 0.",
        "`weighted = [weight * value if weight else 0.0 for value in values.values()]`; `sums = "
        "torch.tensor([*weighted, weight], dtype=torch.float64, device=_device(group))`; if there is a group, "
        "`dist.all_reduce(sums, group=group)`; `means = dict(zip(values, (sums[:-1] / sums[-1]).tolist()))`.",
    ],
}
