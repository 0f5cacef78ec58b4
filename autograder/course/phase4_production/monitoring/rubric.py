"""Hidden rubric of monitoring: 25 points, 14 for what is found and named, 11 for hashes, times, traffic and cost.

Faults are the judge's: a slow rank, a slow network card, a slow loader, tensors that differ in one bit, losses and
memory that no rank but its own sees. Steps take times that the judge charges, with noise, so the trace and the virtual
clock show what the monitor costs.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.clusters.virtual import jitter, link, slow
from labkit.course.phase4_production.monitoring.scenarios import compared, fingerprints, found_outliers, probed
from labkit.trace import Kind

FORBIDDEN = {"torch.distributed.all_gather_object", "torch.distributed.monitored_barrier", "torch.hash_tensor"}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""
NETWORK: dict[str, Any] = {"inter_node": "ethernet-100g"}


# What runs on the ranks -----------------------------------------------------------------------------------------------


def divided(plan: list[list[int]], interval: int, samples: list[int], compute: Any, load: Any, talk: Any) -> list[Any]:
    """On a rank: take steps that compute, load and talk so many times; return the last summary, the records, and the
    efficiency compared with a rank of 100 samples per second."""
    import json
    import tempfile
    from pathlib import Path

    import torch.distributed as dist

    from labkit.exercises import monitoring

    rank = dist.get_rank()
    with tempfile.TemporaryDirectory() as folder:
        monitor = monitoring.DistributedTrainingMonitor(
            rank, dist.get_world_size(), interval=interval, log_dir=folder, probe_nbytes=64
        )
        for step, (computing, loading, talking) in enumerate(plan):
            for _ in range(loading):
                with monitor.timed("input"):
                    load()
            for _ in range(computing):
                compute()
            for _ in range(talking):
                with monitor.timed("communication"):
                    talk()
            compute()
            monitor.log_step_metrics(step, 0.5 * step, samples[step], 1000 - step)
        lines = [json.loads(line) for line in (Path(folder) / f"rank-{rank:05d}.jsonl").read_text().splitlines()]
    own = monitor.history[-1][rank]
    wanted = ["step", "loss", "compute_seconds", "communication_seconds", "input_seconds", "samples_per_second"]
    records = [[float(line[name]) for name in wanted] for line in lines if line["kind"] == "step"]
    return [[float(x) for x in own[:6]], records, float(monitor.measure_scaling_efficiency(100.0))]


def watched(
    runs: list[Any],
    compute: Any,
    load: Any,
    slow_load: Any,
    onset: int = 1 << 30,
    every: int = 1,
    late: list[bool] | None = None,
    bare: bool = False,
    group: Any = None,
    **options: Any,
) -> list[list[list[Any]]]:
    """On a rank: train for each of `runs`, its losses and bytes of memory in each step, under a monitor of its own.

    onset: first step with `slow_load`. every: steps between two all-reduces. late: steps that compute twice. bare:
    without a monitor. Returns for each run the alarms: when they were raised, cause, rank, step.
    """
    from contextlib import nullcontext

    import torch
    import torch.distributed as dist

    from labkit.exercises import monitoring

    gradient = torch.zeros(1000)
    raised = []
    for losses, memory in runs:
        monitor = monitoring.DistributedTrainingMonitor(
            dist.get_rank(group), dist.get_world_size(group), group=group, **options
        )
        found = []
        for step, (loss, nbytes) in enumerate(zip(losses, memory, strict=True)):
            with nullcontext() if bare else monitor.timed("input"):
                (slow_load if step >= onset else load)()
            compute()
            if late is not None and late[step]:
                compute()
            if step % every == every - 1:
                with nullcontext() if bare else monitor.timed("communication"):
                    dist.all_reduce(gradient, group=group)
            if not bare:
                alarms = monitor.log_step_metrics(step, torch.tensor(loss), 8, int(nbytes))
                found += [[step, alarm.cause, int(alarm.rank), int(alarm.step)] for alarm in alarms]
        raised.append(found)
    return raised


def misused(cases: list[str]) -> list[str]:
    """On a rank: return the error for each wrong argument."""
    import torch.distributed as dist

    from labkit.exercises import monitoring

    rank, ranks = dist.get_rank(), dist.get_world_size()
    monitor = monitoring.DistributedTrainingMonitor(rank, ranks)
    tried = {
        "rank": lambda: monitoring.DistributedTrainingMonitor(ranks, ranks),
        "rank and world_size": lambda: monitoring.DistributedTrainingMonitor(rank, ranks + 1),
        "interval": lambda: monitoring.DistributedTrainingMonitor(rank, ranks, interval=0),
        "stride": lambda: monitoring.DistributedTrainingMonitor(rank, ranks, stride=ranks),
        "step": lambda: monitor.log_step_metrics(-1, 0.0),
        "loss": lambda: monitor.log_step_metrics(0, None),
        "samples": lambda: monitor.log_step_metrics(0, 0.0, -1),
        "nbytes": lambda: monitor.measure_communication_time(0),
        "samples_per_second": lambda: monitor.measure_scaling_efficiency(0.0),
    }
    found = []
    for case in cases:
        try:
            tried[case]()
            found.append("nothing")
        except NotImplementedError:
            raise  # a part that is not written yet is no answer
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


# What is given, and what must come out --------------------------------------------------------------------------------


def flipped(tensor: Tensor, place: int, bit: int) -> Tensor:
    """Return the tensor with one bit changed."""
    data = tensor.clone().contiguous()
    flat = data.view(-1).view(torch.uint8)
    flat[place * tensor.element_size() + bit // 8] ^= 1 << (bit % 8)
    return data


def calm(steps: int) -> list[Any]:
    """Return losses that fall, and memory that stays."""
    return [[1 + 3 * math.exp(-step / 10) for step in range(steps)], [1e9] * steps]


def healthy(draw: Draw, steps: int) -> list[Any]:
    """Return losses that fall, with noise, and memory that varies, and rises once when a cache is filled."""
    fall, spread = draw.uniform(2, 4), draw.uniform(0.05, 0.1)
    losses = [(1 + 3 * math.exp(-step / fall)) * draw.lognormvariate(0, spread) for step in range(steps)]
    size, cache = draw.uniform(1e9, 1e10), draw.randrange(5, 30)
    memory = [size * (1 + 0.3 * (step >= cache)) * draw.uniform(1, 1.08) for step in range(steps)]
    return [losses, memory]


def times(draw: Draw) -> dict[str, Any]:
    """Return what a step of about 20 ms takes."""
    load = draw.uniform(0.002, 0.004)
    return {"compute": work("compute", 0.02 - load), "load": work("load", load)}


def watch(submission: Submission, ranks: Ranks, given: list[Args | None], faults: list[Any], **hardware: Any) -> Run:
    """Let ranks train under monitors."""
    return ranks(len(given), faults=faults, **NETWORK, **hardware).call(submission.used_by(watched), given)


def expect_alarms(run: Run, wanted: list[tuple[str, int]], what: str, by: int, number: int = 0) -> None:
    """Expect these alarms, cause and rank, on all ranks, no others, and none raised after the step `by`."""
    for rank, value in enumerate(run.values):
        if value is not None:
            seen = [(cause, of) for _, cause, of, _ in value[number]]
            expect(sorted(seen), f"alarms on rank {rank}: {what}").equals(sorted(wanted))
            last = max((step for step, *_ in value[number]), default=0)
            expect(last, f"step of the last alarm on rank {rank}: {what}").at_most(by)


# Equal tensors --------------------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=1,
    title="fingerprints: every bit and every place count",
    look_at="fingerprint: what is multiplied, and how the weights differ from place to place",
)
def hashes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    kinds = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8)
    pairs: list[tuple[Tensor, Tensor, bool, str]] = []
    for dtype in kinds:
        tensor = draw.tensor((draw.randrange(5, 9), draw.randrange(5, 9)), dtype)
        bits = 8 * tensor.element_size()
        pairs += [(tensor, tensor.clone(), True, f"equal {dtype}")]
        for bit in {0, bits - 1, draw.randrange(bits)}:
            place = draw.randrange(tensor.numel())
            pairs.append((tensor, flipped(tensor, place, bit), False, f"bit {bit} of an element of {dtype}"))
    # between two powers of two neighbours are equally many words apart, so that changes cancel under regular weights
    row = torch.arange(128, 128 + draw.randrange(20, 40), dtype=torch.float32)
    i, j, k = sorted(draw.sample(range(1, len(row) - 1), 3))
    swapped, three, moved = row.clone(), row.clone(), row.clone()
    swapped[[i, j]] = swapped[[j, i]]
    three[k - 1 : k + 2] += torch.tensor([1.0, -2.0, 1.0])
    moved[i] += 4
    moved[k] -= 4
    small = row.clone()
    small[j] = torch.nextafter(small[j], torch.tensor(1e9))
    pairs += [
        (row, swapped, False, "two elements exchanged"),
        (row, row.flip(0), False, "elements in reverse order"),
        (row, moved, False, "4 added to one element and subtracted from another"),
        (row, three, False, "1, -2 and 1 added to three neighbours"),
        (row, small, False, "the next larger float32"),
        (row * 0, -(row * 0), False, "0.0 and -0.0"),
        (torch.cat([row, row * 0]), torch.cat([row * 0, row]), False, "the same values behind zeros"),
    ]
    matrix = draw.tensor((4, 6))
    pairs.append((matrix, matrix.clone(), True, "equal, one of them not contiguous"))
    order = draw.sample(range(len(pairs)), len(pairs))
    sides = [[pairs[place][side] for place in order] for side in (0, 1)]
    strided = [order.index(len(pairs) - 1)]
    given = [Args(sides[0], []), Args(sides[1], strided)]
    run = ranks(2).call(submission.used_by(fingerprints), given)
    for number, place in enumerate(order):
        equal, text = pairs[place][2:]
        what = f"whether fingerprints are equal: {text}"
        expect(run.values[0][number] == run.values[1][number], what).equals(equal)


@check(
    points=3,
    todo=1,
    title="the parameter or gradient that differs is named, with its rank, by one all-gather",
    look_at="check_gradient_sync: what is gathered, and whom most ranks agree with",
)
def synchronized(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    count = draw.randrange(3, 6)
    shapes = [(draw.randrange(3, 8), draw.randrange(3, 8)) for _ in range(count)]

    def check_one(world_size: int, plants: list[tuple[int, int, str]], members: list[int] | None = None) -> None:
        members = members or list(range(world_size))
        values, grads = [draw.tensor(shape) for shape in shapes], [draw.tensor(shape) / 7 for shape in shapes]
        given: list[Args | None] = [None] * world_size
        for rank in range(world_size):
            own, of = [value.clone() for value in values], [grad.clone() for grad in grads]
            missing = [place for who, place, kind in plants if who == rank and kind == "missing"]
            for who, place, kind in plants:
                if who == rank and kind != "missing":
                    tensors = own if kind == "value" else of
                    tensors[place] = flipped(tensors[place], draw.randrange(9), draw.randrange(4))
            some = members if rank in members else [r for r in range(world_size) if r not in members]
            given[rank] = Args(own, of, missing, group_of(some))
        run = ranks(world_size).call(submission.used_by(compared), given)
        wanted = sorted(
            ["desynchronized", members.index(who), f"layer{place}{'' if kind == 'value' else '.grad'}"]
            for who, place, kind in plants
        )
        what = f"alarms for {len(plants)} tensors that differ, of {2 * count} on {len(members)} ranks"
        for rank in members:
            expect(sorted(run.values[rank]), f"{what}, on rank {rank}").equals(wanted)
            seen = [(event.operation, event.nbytes) for event in run.trace.collectives(rank)]
            expect(len(seen), f"collectives of rank {rank}: {seen}").equals(1)
            expect(seen[0][1], "bytes that it gathers from a rank", unit="bytes").at_most(16 * 2 * count)
            expect(run.trace.messages_sent(rank), "messages beside it").equals(0)

    world_size = draw.choice([3, 4, 5])
    check_one(world_size, [])
    culprit, other = draw.sample(range(world_size), 2)
    check_one(world_size, [(culprit, draw.randrange(count), "value")])
    check_one(4, [(0, 0, "value")])
    check_one(5, [(culprit % 5, count - 1, "grad"), (other % 5, 0, "value"), (other % 5, 0, "grad")])
    check_one(world_size, [(world_size - 1, draw.randrange(count), "missing")])
    check_one(5, [(4, 1, "value")], members=[1, 2, 4])
    # of two ranks nobody knows which one is right
    place = draw.randrange(count)
    values, grads = [draw.tensor(shape) for shape in shapes], [draw.tensor(shape) for shape in shapes]
    second = [flipped(v, 1, 3) if n == place else v for n, v in enumerate(values)]
    run = ranks(2).call(submission.used_by(compared), [Args(values, grads, []), Args(second, grads, [])])
    wanted = [["desynchronized", rank, f"layer{place}"] for rank in range(2)]
    expect([sorted(value) for value in run.values], "alarms where one of two ranks differs").equals([wanted] * 2)


# Times, traffic and cost ----------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=3,
    title="a step's compute, communication and input; an interval's medians, throughput and least memory",
    look_at="split and summarize",
)
def parts_of_steps(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    interval, world_size = draw.choice([5, 7]), 2
    units = [draw.uniform(0.001, 0.003) for _ in range(3)]
    plans = [
        [[draw.randrange(0, 6), draw.randrange(0, 4), draw.randrange(0, 4)] for _ in range(interval * 2)]
        for _ in range(world_size)
    ]
    for plan in plans:
        plan[draw.randrange(interval, 2 * interval)] = [50, 60, 70]
    samples = [[draw.randrange(1, 30) for _ in plan] for plan in plans]
    works = {name: work(name, unit) for name, unit in zip(("compute", "load", "talk"), units, strict=True)}
    given = [Args(plan, interval, some, **works) for plan, some in zip(plans, samples, strict=True)]
    run = ranks(world_size).call(submission.used_by(divided), given)
    rates = []
    for plan, own in zip(plans, samples, strict=True):
        times = [[(c + 1) * units[0], t * units[2], i * units[1]] for c, i, t in plan]
        last = times[interval:]
        rates.append(sum(own[interval:]) / sum(map(sum, last)))
        wanted = [*(median(column) for column in zip(*last, strict=True)), rates[-1]]
        rank = len(rates) - 1
        summary, records, _ = run.values[rank]
        expect(summary[0], f"last step in the summary of rank {rank}").equals(2 * interval - 1.0)
        for name, seen, right in zip(("compute", "communication", "input"), summary[1:4], wanted, strict=False):
            off = abs(seen - right)
            expect(off, f"error of the median of {name} on rank {rank}, {seen} s", unit="seconds").at_most(3e-5)
        expect([torch.tensor(summary[4])], "samples per second").close_to([torch.tensor(rates[-1])], rel=1e-2)
        expect(summary[5], "least memory of the interval").equals(1000.0 - (2 * interval - 1))
        for number, (line, parts) in enumerate(zip(records, times, strict=True)):
            expect(line[:2], f"step and loss in line {number} of rank {rank}").equals([number, 0.5 * number])
            off = max(abs(seen - right) for seen, right in zip(line[2:5], parts, strict=True))
            what = f"largest error among compute, communication and input in line {number} of rank {rank}"
            expect(off, what, unit="seconds").at_most(3e-5)
            rate = torch.tensor(own[number] / sum(parts))
            expect([torch.tensor(line[5])], f"samples per second in line {number}").close_to([rate], rel=1e-2)
    wanted_share = sum(rates) / (100.0 * world_size)
    efficiencies = [torch.tensor([value[2]]) for value in run.values]
    expect(efficiencies, "scaling efficiency").close_to([torch.tensor([wanted_share])] * world_size, rel=1e-2)


@check(
    points=2,
    todo=3,
    title="one small gather and one probe for each interval, and nothing else",
    look_at="log_step_metrics: `given.gather_summaries`; measure_communication_time",
)
def traffic(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, interval, steps = draw.choice([3, 4]), draw.choice([4, 5]), 13
    stride, nbytes = draw.choice([1, 2]), draw.randrange(100_000, 200_000)
    runs = [[calm(steps)] for _ in range(world_size)]
    options = {"interval": interval, "probe_nbytes": nbytes, "stride": stride, "slow_load": work("x", 1.0)}
    given: list[Args | None] = [Args(own, **times(draw), **options) for own in runs]
    run = watch(submission, ranks, given, [])
    expect_alarms(run, [], "a healthy run", steps)
    rounds = steps // interval
    for rank in range(world_size):
        others = [e for e in run.trace.collectives(rank) if e.nbytes != 4000]
        seen = [event.operation for event in others]
        expect(len(others), f"collectives of rank {rank} beside training, {steps} steps: {seen}").equals(rounds)
        expect(max(e.nbytes for e in others), "bytes of a rank in each", unit="bytes").at_most(128)
        sent = [(e.peer, e.nbytes) for e in run.trace.of(rank, Kind.SEND)]
        expect(sent, f"messages of rank {rank}").equals([((rank + stride) % world_size, nbytes)] * rounds)
    probe = ranks(world_size, **NETWORK).call(submission.used_by(probed), [Args(10 * nbytes, stride)] * world_size)
    for rank in range(world_size):
        (event,) = probe.trace.of(rank, Kind.RECEIVE)
        wanted = [torch.tensor([event.end - event.start])]
        what = "seconds that measure_communication_time returns, beside the trace"
        expect([torch.tensor([probe.values[rank]])], what).close_to(wanted, rel=0.02)


@check(
    points=2,
    todo=3,
    title="the monitor costs at most 1 % of a step of 20 ms, and no rank waits for another in between",
    look_at="log_step_metrics: what happens in a step that does not end an interval",
)
def cost(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, steps = 4, 40
    given_times = times(draw)
    turn = [[step % world_size == rank for step in range(steps)] for rank in range(world_size)]
    for every, late in ((1, None), (10, turn)):
        seconds = []
        for bare in (True, False):
            given: list[Args | None] = [
                Args(
                    [calm(steps)],
                    **given_times,
                    slow_load=work("x", 1.0),
                    every=every,
                    late=late[rank] if late else None,
                    bare=bare,
                )
                for rank in range(world_size)
            ]
            run = watch(submission, ranks, given, [])
            seconds.append(run.trace.seconds)
            if not bare:
                expect_alarms(run, [], "a healthy run", steps)
        what = f"seconds of {steps} steps with a monitor, an all-reduce every {every}; without it {seconds[0]:.4f}"
        expect(seconds[1], what, unit="seconds").at_most(1.01 * seconds[0])


# Stragglers -----------------------------------------------------------------------------------------------------------


@check(points=2, todo=4, title="outliers by median and deviation", look_at="outliers")
def deviations(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases: list[Any] = [
        [[1.0, 1.3], 1.15],
        [[1.3, 1.0], 1.15],
        [[1.0, 1.0, 1.3, 1.3], 1.15],
        [[2.0] * 5, 1.15],
        [[3.0], 1.15],
        [[0.0, 0.0, 0.0], 1.5],
        # one bad value, by which a mean and a standard deviation hide the other
        [[1.0, 1.01, 0.99, 1.0, 1.4, 900.0], 1.15],
        # widely spread: nobody is far away
        [[1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0], 1.15],
        # a fast rank
        [[1.0, 1.0, 1.01, 0.99, 0.2], 1.15],
    ]
    for _ in range(12):
        values = [draw.lognormvariate(0, 0.03) for _ in range(draw.randrange(3, 12))]
        for place in draw.sample(range(len(values)), len(values) // 3):
            values[place] *= draw.choice([0.3, 1.1, 1.25, 2.0, 50.0])
        cases.append([values, draw.choice([1.05, 1.15, 1.5])])
    (seen,) = ranks(1).call(submission.used_by(found_outliers), [Args(cases)]).values
    for (values, factor), found in zip(cases, seen, strict=True):
        usual = sorted(values)[(len(values) - 1) // 2]
        spread = 1.4826 * sorted(abs(value - usual) for value in values)[(len(values) - 1) // 2]
        wanted = [n for n, value in enumerate(values) if value > factor * usual and value > usual + 5 * spread]
        shown = ", ".join(f"{value:.3g}" for value in values)
        expect(found, f"outliers by a factor of {factor} among {shown}").equals(wanted)


@check(
    points=4,
    todo=4,
    title="slow compute, slow input and a slow link are told apart, within 50 steps, among noise",
    look_at="detect_stragglers: which times are compared, and whose link it is",
)
def stragglers(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for cause in ("slow compute", "slow input", "slow link", "slow compute"):
        world_size = draw.choice([4, 5])
        culprit = draw.randrange(world_size)
        steps, onset, step_times = 75, draw.randrange(15, 25), times(draw)
        factor = draw.uniform(1.3, 1.4)
        # how much longer the loader makes the step of this rank
        extra = step_times["load"]["labkit:work"][1] + (factor - 1) * 0.02
        faults: list[Any] = [jitter(seed=draw.randrange(10**6))]
        if cause == "slow compute":
            faults.append(slow(culprit, factor=factor, at=0.02 * onset))
        if cause == "slow link":
            faults.append(link(node=culprit, factor=draw.uniform(0.3, 0.5), at=0.02 * onset))
        given: list[Args | None] = [
            Args(
                [calm(steps)],
                **step_times,
                slow_load=work("load", extra),
                onset=onset if (cause, rank) == ("slow input", culprit) else 1 << 30,
            )
            for rank in range(world_size)
        ]
        run = watch(submission, ranks, given, faults)
        text = f"{cause} on rank {culprit} of {world_size} from about step {onset}"
        expect_alarms(run, [(cause, culprit)], text, onset + 50)
    # one slow rank of two, and several ranks of a node, whose card is slow
    culprit = draw.randrange(2)
    given = [Args([calm(50)], **times(draw), slow_load=work("load", 1.0))] * 2
    noise = jitter(seed=draw.randrange(10**6))
    run = watch(submission, ranks, given, [noise, slow(culprit, factor=1.35)])
    expect_alarms(run, [("slow compute", culprit)], f"rank {culprit} of 2 is slow", 50)
    node = draw.randrange(3)
    given = [Args([calm(50)], **times(draw), slow_load=work("load", 1.0), stride=2)] * 6
    run = watch(submission, ranks, given, [noise, link(node=node, factor=0.4)], nproc_per_node=2)
    both = [("slow link", 2 * node + place) for place in range(2)]
    expect_alarms(run, both, f"stride 2, two ranks on each node, the card of node {node} is slow", 50)


@check(
    points=2,
    todo=4,
    title="no alarm in 20 healthy, noisy runs",
    look_at="factor and deviation in outliers; how long something must last",
)
def healthy_runs(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, steps = 3, 45
    for part in range(2):
        given: list[Args | None] = [
            Args(
                [healthy(draw, steps) for _ in range(10)],
                **times(draw),
                slow_load=work("x", 1.0),
                late=[step == 17 + 9 * rank for step in range(steps)],
            )
            for rank in range(world_size)
        ]
        run = watch(submission, ranks, given, [jitter(seed=draw.randrange(10**6), compute=0.06)])
        for number in range(10):
            what = f"healthy run {10 * part + number + 1} of 20, with noise and one long step of each rank"
            expect_alarms(run, [], what, 0, number)
    # it must see something, too
    given = [Args([calm(40)], **times(draw), slow_load=work("x", 1.0))] * 3
    run = watch(submission, ranks, given, [slow(1, factor=1.4)])
    expect_alarms(run, [("slow compute", 1)], "rank 1 is slow", 40)


# Memory and losses ----------------------------------------------------------------------------------------------------


@check(
    points=2,
    todo=2,
    title="memory that grows by 1 % in a step is found, memory that varies is not",
    look_at="detect_leaks: the least memory of each interval",
)
def leaks(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, steps, culprit = 3, 60, draw.randrange(3)
    interval, onset = draw.choice([8, 10]), draw.randrange(0, 8)
    given: list[Args | None] = []
    for rank in range(world_size):
        losses, memory = calm(steps)
        size = draw.uniform(1e9, 1e10)
        leak = [size * (1 + 0.01 * max(0, n - onset)) * draw.uniform(1, 1.04) for n in range(steps)]
        # a cache that fills and is emptied, and a step up for good, are none
        teeth = [size * (1 + 0.02 * (n % (2 * interval + 3))) for n in range(steps)]
        stairs = [size * (1 + 0.4 * (n >= 3 * interval - 2)) for n in range(steps)]
        runs = [leak if rank == culprit else memory, teeth, stairs, memory]
        given.append(
            Args([[losses, list(one)] for one in runs], **times(draw), slow_load=work("x", 1.0), interval=interval)
        )
    run = watch(submission, ranks, given, [])
    expect_alarms(run, [("memory leak", culprit)], f"rank {culprit} leaks from step {onset}", onset + 50)
    for number, text in ((1, "memory in a sawtooth"), (2, "memory that rises once"), (3, "memory that varies")):
        expect_alarms(run, [], text, 0, number)


@check(
    points=1,
    todo=2,
    title="losses that are NaN, infinite or far too high, with rank and step",
    look_at="judge_loss: comparisons with NaN are false; which losses are remembered",
)
def losses(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, steps = 3, 60
    plants: list[list[tuple[str, int, int, float]]] = [
        [("loss not finite", draw.randrange(3), draw.randrange(2, 50), math.nan)],
        [("loss not finite", draw.randrange(3), draw.randrange(2, 50), math.inf)],
        [("loss not finite", draw.randrange(3), draw.randrange(2, 50), -math.inf)],
        [("loss spike", draw.randrange(3), draw.randrange(30, 50), 8.0)],
        # a NaN hides no spike that comes later
        [("loss not finite", 1, draw.randrange(3, 9), math.nan), ("loss spike", 1, draw.randrange(31, 50), 8.0)],
    ]
    series = [[calm(steps) for _ in plants] for _ in range(world_size)]
    for number, some in enumerate(plants):
        for _, rank, step, value in some:
            own = series[rank][number][0]
            own[step] = own[step] * value if value == 8.0 else value
    given: list[Args | None] = [Args(own, **times(draw), slow_load=work("x", 1.0)) for own in series]
    run = watch(submission, ranks, given, [])
    for number, some in enumerate(plants):
        wanted = [[cause, rank, step] for cause, rank, step, _ in some]
        seen = [[alarm[1:] for alarm in value[number]] for value in run.values]
        expect(seen, f"alarms: cause, rank, step; planted: {wanted}").equals([wanted] * world_size)
        raised = max(alarm[0] for alarm in run.values[0][number])
        expect(raised, "step at which the last alarm was raised").at_most(max(step for _, _, step, _ in some) + 10)


@check(points=1, todo=4, title="bad arguments raise ValueError", look_at="the given lines at the beginning must stay")
def arguments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases = ["rank", "rank and world_size", "interval", "stride", "step", "loss", "samples", "nbytes"]
    cases.append("samples_per_second")
    run = ranks(2).call(submission.used_by(misused), [Args(cases)] * 2)
    for value in run.values:
        for case, seen in zip(cases, value, strict=True):
            expect(seen.startswith(f"ValueError: {case}"), f"ValueError that begins with {case}").holds(seen)
    expect(len(run.trace.collectives()), "collectives before an error").equals(0)
    # who does nothing raises nothing either
    values, grads = [draw.tensor((3, 4))], [draw.tensor((3, 4))]
    other = [flipped(values[0], 2, 5)]
    given = [Args(other if rank == 1 else values, grads, []) for rank in range(3)]
    run = ranks(3).call(submission.used_by(compared), given)
    expect(run.values, "alarms where rank 1 differs").equals([[["desynchronized", 1, "layer0"]]] * 3)
