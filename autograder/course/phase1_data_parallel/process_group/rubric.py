"""Hidden rubric of process_group: 25 points, for return values and for the collectives that are called.

The judge's clock shows who went first; its trace shows how many collectives there were, and who joined and left which
process group with which backend. No check reads source text. Programs of `scenarios`, and some here, run on the ranks:
each uses the learner's module as a training script would.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.course.phase1_data_parallel.process_group.scenarios import (
    Environment,
    comes_and_goes,
    reads,
    takes_turns,
)
from labkit.trace import Kind

NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
ADDRESS = ("MASTER_ADDR", "MASTER_PORT")


def environment(draw: Draw) -> Environment:
    """Return an environment as torchrun might set it for one rank."""
    world_size = draw.randrange(9, 500)
    texts = draw.randrange(8, world_size), world_size, draw.randrange(8), "node-0", draw.randrange(2000, 60000)
    return {name: str(text) for name, text in zip((*NUMBERS, *ADDRESS), texts, strict=True)}


def read(submission: Submission, ranks: Ranks, cases: list[tuple[Environment, dict[str, Any]]]) -> list[Any]:
    """Return the result of each case, each on its own rank."""
    found = ranks(1).call(submission.used_by(reads, joined=False), [Args(cases)]).values[0]
    expect(len(found) if isinstance(found, list) else found, "results").equals(len(cases))
    return list(found)


@check(points=1, todo=1, title="from_env reads torchrun's variables", look_at="which variable each field comes from")
def from_env(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    here, tcp = environment(draw), f"tcp://node-0:{draw.randrange(2000, 60000)}"
    cases: list[tuple[Environment, dict[str, Any]]] = [
        (here, {}),
        ({**here, **dict.fromkeys(ADDRESS)}, {"init_method": tcp, "gradient_as_bucket_view": True}),
        (here, {"backend": "nccl"}),
    ]
    numbers = [int(here[name] or 0) for name in NUMBERS]
    expect(read(submission, ranks, cases), "config").equals(
        [
            [*numbers, "gloo", "env://", False],
            [*numbers, "gloo", tcp, True],
            [*numbers, "nccl", "env://", False],
        ]
    )


@check(
    points=3, todo=1, title="missing variables are named, all of them and no others", look_at="what is looked up first"
)
def missing(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    here, everything = environment(draw), [*NUMBERS, *ADDRESS]
    absent = [[draw.choice(NUMBERS)], [draw.choice(ADDRESS)], draw.sample(everything, 2), draw.sample(everything, 3)]
    found = read(submission, ranks, [({**here, **dict.fromkeys(names)}, {}) for names in (*absent, everything)])
    for names, (raised, message, *_) in zip((*absent, everything), found, strict=True):
        expect(raised, f"without {len(names)} variables it raises").equals("ValueError")
        # RANK is also the end of LOCAL_RANK
        words = {word.strip(".,;:'\"`()[]{}=") for word in str(message).split()}
        expect(sorted(words & set(everything)), "variables that the message names").equals(sorted(names))


@check(points=1, todo=1, title="a variable that is no number is named, with its value", look_at="what int() raises")
def no_number(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    value = draw.choice(["four", "2.5", ""])
    found = read(submission, ranks, [({**environment(draw), name: value}, {}) for name in NUMBERS])
    for name, (raised, message, *_) in zip(NUMBERS, found, strict=True):
        expect(raised, f"{name}={value!r}: it raises").equals("ValueError")
        for text in (name, value):
            expect(message, f"{name}={value!r}: message").contains(text)


def joins(backend: str, number: float) -> Any:
    """Set up as a training script does, and sum a number over all ranks."""
    import torch
    import torch.distributed as dist

    from labkit.exercises import process_group

    device = process_group.setup_distributed(process_group.DDPConfig.from_env(backend=backend))
    total = torch.tensor(number, device=device)
    dist.all_reduce(total)
    first = process_group.is_main_process()
    return [device == torch.device("cpu"), dist.get_rank(), dist.get_world_size(), first, float(total)]


def in_groups(run: Run, backends: list[str], left: bool = False) -> None:
    """Check that each rank joined these groups of all ranks in turn, with these backends and one all_reduce in each.

    left: whether they left each group before they joined the next one, and the last one too.
    """
    everybody = tuple(range(run.trace.world_size))
    for rank in everybody:
        joined = run.trace.memberships_of(rank)
        what = f"each process group that rank {rank} joined, as the scheduler saw it"
        expect([m.backend for m in joined], f"backend of {what}").equals(backends)
        expect([run.trace.groups[m.group] for m in joined], f"ranks of {what}").equals([everybody] * len(joined))
        used = [event.group for event in run.trace.collectives(rank)]
        expect(used == [m.group for m in joined], f"rank {rank} has called one collective in each").equals(True)
        expect([m.left is not None for m in joined], f"whether rank {rank} has left each").equals([left] * len(joined))
        in_turn = all(first.left is not None and first.left <= then.joined for first, then in pairwise(joined))
        expect(in_turn, f"rank {rank} has left each process group before it joined the next one").equals(True)


@check(
    points=2, todo=2, title="setup_distributed makes one group of all ranks", look_at="what init_process_group is given"
)
def setup(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    nodes, on_each = draw.choice([(3, 2), (2, 3)])
    numbers = [float(draw.randrange(100)) for _ in range(nodes * on_each)]
    run = ranks(len(numbers), nproc_per_node=on_each).call(
        submission.used_by(joins, joined=False), lambda rank: Args("gloo", numbers[rank])
    )
    wanted = [[True, rank, len(numbers), rank == 0, sum(numbers)] for rank in range(len(numbers))]
    expect(run.values, "device is the CPU, rank, world size, is main, sum").equals(wanted)
    in_groups(run, ["gloo"])


@check(
    points=1,
    todo=2,
    title="the group has the backend that the config names",
    look_at="what init_process_group is given",
)
def backend(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for name in ("nccl", "gloo"):
        numbers = [float(draw.randrange(100)) for _ in range(2)]
        run = ranks(2).call(submission.used_by(joins, joined=False), [Args(name, number) for number in numbers])
        expect([value[-1] for value in run.values], "sum").equals([sum(numbers)] * 2)
        in_groups(run, [name])


@check(
    points=2,
    todo=2,
    title="cleanup twice, or without a group; a new group after it",
    look_at="what is remembered of a group that has ended",
)
def cleanup(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    size = draw.choice([2, 3])
    run = ranks(size).call(submission.used_by(comes_and_goes, joined=False), lambda rank: Args(1))
    seen = [[number for _, total, exists in found for number in (total, float(exists))] for found in run.values]
    expect(seen, "sum of ones, group exists, twice").equals([[float(size), 0.0] * 2] * size)
    in_groups(run, ["gloo", "gloo"], left=True)


def joins_again(changes: list[dict[str, int]], number: float) -> Any:
    """Set up twice, then with unsuitable configs; return the errors, and a sum over the existing group."""
    import dataclasses

    import torch
    import torch.distributed as dist

    from labkit.exercises import process_group as pg

    config = pg.DDPConfig.from_env(backend="gloo")
    found: list[Any] = []
    for change in [{}, {}, *changes]:
        try:
            pg.setup_distributed(dataclasses.replace(config, **change))
            found.append("no error")
        except ValueError:
            found.append("ValueError")
    total = torch.tensor(number)
    dist.all_reduce(total)
    return [*found, float(total)]


@check(
    points=1,
    todo=2,
    title="a group that exists is kept, another one refused",
    look_at="what is compared with the config",
)
def kept(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    size = draw.choice([2, 3])
    numbers = [float(draw.randrange(100)) for _ in range(size)]
    turn = draw.randrange(1, size)
    run = ranks(size).call(
        submission.used_by(joins_again, joined=False),
        lambda rank: Args([{"world_size": size + draw.randrange(1, 9)}, {"rank": (rank + turn) % size}], numbers[rank]),
    )
    wanted = ["no error", "no error", "ValueError", "ValueError", sum(numbers)]
    what = "setup, the same again, another world size, another rank; sum over the existing group"
    expect(run.values, what).equals([wanted] * size)
    in_groups(run, ["gloo"])


def turns(run: Run, rank: int) -> tuple[float, float]:
    """Return the start and end of this rank's block by the judge's clock."""
    found = [event for event in run.trace.of(rank, Kind.COMPUTE) if event.operation == "turn"]
    expect(len(found), f"how often the block ran on rank {rank}").equals(1)
    return found[0].start, found[0].end


def in_order(run: Run, members: list[int]) -> None:
    """Check that the first member's block comes before the others', and those run at the same time."""
    ended, others = turns(run, members[0])[1], [turns(run, rank) for rank in members[1:]]
    expect(min(start for start, _ in others) >= ended, "the others begin when rank 0 has ended").equals(True)
    together = max(start for start, _ in others) < min(end for _, end in others)
    expect(together, "the others do not wait for each other").equals(True)


@check(
    points=2,
    todo=3,
    title="rank_zero_first: rank 0 before the others, those together",
    look_at="on which side of its yield each rank comes to the barrier",
)
def order(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    size = draw.choice([3, 5])
    run = ranks(size).call(submission.used_by(takes_turns), lambda rank: Args(work("turn", draw.uniform(0.1, 0.2))))
    expect([value[-1] for value in run.values], "result of the block").equals(["fine"] * size)
    in_order(run, list(range(size)))


@check(
    points=2,
    todo=3,
    title="rank_zero_first: a block that fails leaves nobody waiting",
    look_at="who comes to the barrier when an exception goes through the yield",
)
def failing(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    size = draw.choice([3, 4])
    for fails in (0, draw.randrange(1, size)):
        turns_of = [Args(work("turn", 0.1), "failed" if rank == fails else "") for rank in range(size)]
        run = ranks(size).call(submission.used_by(takes_turns), turns_of)
        expect([value[-1] for value in run.values], "result of the block").equals(
            ["failed" if rank == fails else "fine" for rank in range(size)]
        )
        in_order(run, list(range(size)))


@check(points=1, todo=4, title="a group of some of the ranks", look_at="which calls are given the group")
def groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    order = draw.sample(range(5), 5)
    parts = [sorted(order[:2]), sorted(order[2:])]
    mine = {rank: part for part in parts for rank in part}
    run = ranks(5).call(
        submission.used_by(takes_turns), lambda rank: Args(work("turn", 0.1), group=group_of(mine[rank]))
    )
    for part in parts:
        in_order(run, part)
    losses = [float(draw.randrange(100)) for _ in range(5)]
    run = ranks(5).call(
        submission.all_reduce_metrics, lambda rank: Args({"loss": losses[rank]}, group=group_of(mine[rank]))
    )
    agree(run, ["loss"], [[sum(losses[r] for r in mine[rank]) / len(mine[rank])] for rank in range(5)])


def agree(run: Run, names: list[str], wanted: list[list[float]]) -> None:
    """Check that each rank returned these metrics, as plain floats."""
    seen = []
    for value in run.values:
        right = type(value) is dict and set(value) == set(names) and all(type(v) is float for v in value.values())
        seen.append(torch.tensor([value[name] for name in names], dtype=torch.float64) if right else value)
    expect(seen, f"the means of {', '.join(names)}").close_to([torch.tensor(w, dtype=torch.float64) for w in wanted])


@check(
    points=1, todo=4, title="metrics: the mean over the ranks, the same on all", look_at="by what the sums are divided"
)
def means(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for size in (draw.choice([3, 5, 7]), 1):
        losses = [draw.uniform(-5, 5) for _ in range(size)]
        hits = [draw.randrange(1000) for _ in range(size)]
        metrics = [Args({"loss": torch.tensor(losses[rank]), "hits": hits[rank]}) for rank in range(size)]
        run = ranks(size).call(submission.all_reduce_metrics, metrics)
        loss = sum(float(torch.tensor(value)) for value in losses) / size
        agree(run, ["loss", "hits"], [[loss, sum(hits) / size]] * size)


@check(
    points=1,
    todo=4,
    title="metrics: large numbers, and tensors of every dtype",
    look_at="the dtype that is added up in",
)
def precision(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    tokens = [2**40 + draw.randrange(1000) for _ in range(3)]
    dtype = draw.choice([torch.float16, torch.bfloat16, torch.int64, torch.uint8])
    small = [float(draw.randrange(100)) for _ in range(3)]
    run = ranks(3).call(
        submission.all_reduce_metrics,
        lambda rank: Args({"tokens": tokens[rank], "small": torch.tensor([small[rank]]).to(dtype)}),
    )
    agree(run, ["tokens", "small"], [[sum(tokens) / 3, sum(small) / 3]] * 3)


@check(points=1, todo=4, title="metrics: names in another order on each rank", look_at="which number is at which place")
def names_in_any_order(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    names = ["loss", "accuracy", "seconds", "tokens"]
    orders = [names, names[::-1], draw.sample(names, 4)]
    numbers = {name: float(draw.randrange(index * 100, index * 100 + 100)) for index, name in enumerate(names)}
    run = ranks(3).call(
        submission.all_reduce_metrics, lambda rank: Args({name: numbers[name] + rank for name in orders[rank]})
    )
    agree(run, names, [[numbers[name] + 1 for name in names]] * 3)


@check(
    points=1, todo=4, title="metrics: weights, also of ranks without a batch", look_at="what a rank of weight 0 sends"
)
def weights(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    samples = [float(draw.randrange(1, 33)), float(draw.randrange(33, 65)), 0.0]
    losses = [draw.uniform(0, 1), draw.uniform(2, 3), draw.choice([float("nan"), float("inf")])]
    run = ranks(3).call(submission.all_reduce_metrics, lambda rank: Args({"loss": losses[rank]}, weight=samples[rank]))
    total = sum(n * loss for n, loss in zip(samples[:2], losses[:2], strict=True))
    agree(run, ["loss"], [[total / sum(samples)]] * 3)


@check(points=2, todo=4, title="metrics: one collective for all of them", look_at="how many tensors are sent")
def one_collective(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    names = [f"metric {number}" for number in range(draw.randrange(6, 30))]
    numbers = [float(draw.randrange(100)) for _ in range(4)]
    run = ranks(4).call(submission.all_reduce_metrics, lambda rank: Args(dict.fromkeys(names, numbers[rank])))
    agree(run, names, [[sum(numbers) / 4] * len(names)] * 4)
    for rank in range(4):
        called = [event.operation for event in run.trace.collectives(rank)]
        expect(len(called), f"collectives that rank {rank} called").equals(1)
        expect(run.trace.messages_sent(rank), f"messages from rank {rank}").equals(0)


@check(
    points=1,
    todo=4,
    title="bad metrics raise ValueError before any message",
    look_at="the given lines at the beginning must stay",
)
def bad_arguments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    agree(ranks(2).call(submission.all_reduce_metrics, lambda rank: Args({"loss": rank})), ["loss"], [[0.5]] * 2)
    cases = [
        (Args({"loss": 1.0, "logits": torch.zeros(draw.randrange(2, 9))}), "logits"),
        (Args({"loss": "low"}), "loss"),
        (Args({"loss": 1.0}, weight=-float(draw.randrange(1, 9))), "weight"),
    ]
    for arguments, name in cases:
        run = ranks(2).attempt(submission.all_reduce_metrics, [arguments] * 2)
        for result in run.ranks:
            expect(result.error.type if result.error else "no error", f"a bad {name} raises").equals("ValueError")
            expect(result.error.message if result.error else "", "message").contains(name)
        expect(len(run.trace.collectives()), "collectives called").equals(0)


def works_alone(metrics: dict[str, float]) -> Any:
    """Do what a script does that was started without torchrun."""
    from labkit.exercises import process_group as pg

    turns = 0
    with pg.rank_zero_first():
        turns += 1
    pg.barrier()
    pg.cleanup()
    return [pg.is_main_process(), turns, pg.all_reduce_metrics(metrics)]


@check(
    points=1, todo=4, title="without a group: one process, and no error", look_at="what asks whether there is a group"
)
def alone(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    metrics = {"loss": float(draw.randrange(100)), "accuracy": 0.5}
    run = ranks(2).call(submission.used_by(works_alone, joined=False), lambda rank: Args(metrics))
    expect(run.values, "is main, turns, metrics").equals([[True, 1, metrics]] * 2)
    expect(len(run.trace.memberships), "process groups joined").equals(0)


def whole_script(number: float) -> Any:
    """The frame of a training script. Ranks rendezvous at an address in reverse order, which only an address allows."""
    import dataclasses
    import os

    from labkit.exercises import process_group as pg

    address = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
    config = pg.DDPConfig.from_env(backend="gloo", init_method=address)
    pg.setup_distributed(dataclasses.replace(config, rank=config.world_size - 1 - config.rank))
    said = []
    with pg.rank_zero_first():
        said.append(pg.is_main_process())
    pg.barrier()
    said.append(pg.all_reduce_metrics({"loss": number, "more": 1.0}))
    pg.cleanup()
    pg.cleanup()
    return said


@check(
    points=1, todo=4, title="real processes meet at the address that the config names", look_at="where init_method goes"
)
def real_processes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    numbers = [float(draw.randrange(100)) for _ in range(2)]
    run = ranks.processes(2).call(submission.used_by(whole_script, joined=False), lambda rank: Args(numbers[rank]))
    wanted = {"loss": sum(numbers) / 2, "more": 1.0}
    expect(run.values, "is main, metrics").equals([[False, wanted], [True, wanted]])
