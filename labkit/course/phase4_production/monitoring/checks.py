"""Visible checks and hints of monitoring: small numbers that can be followed by hand.

Steps of 3 ranks take whole milliseconds. What ranks have measured is written into `history` directly, as it would be
after three intervals, so a wrong name comes from the lines that look for it and from nothing else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, NotMeasurable, Ranks, Submission, check, expect, work
from labkit.course.phase4_production.monitoring.scenarios import compared, fingerprints, found_outliers, probed
from labkit.trace import Kind

# What runs on the ranks -----------------------------------------------------------------------------------------------


def stepped(plan: list[list[Any]], compute: Any, load: Any, talk: Any) -> list[Any]:
    """On a rank: take steps, each with a number of milliseconds of each kind; return the last summary."""
    import torch.distributed as dist

    from labkit.exercises import monitoring

    rank = dist.get_rank()
    monitor = monitoring.DistributedTrainingMonitor(rank, dist.get_world_size(), interval=len(plan), probe_nbytes=100)
    alarms = []
    for step, (computing, loading, talking) in enumerate(plan):
        for _ in range(loading):
            with monitor.timed("input"):
                load()
        for _ in range(computing):
            compute()
        with monitor.timed("communication"):
            for _ in range(talking):
                talk()
        alarms += monitor.log_step_metrics(step, 1.0, 30 + rank, 1000 + 10 * step)
    return [list(monitor.history[-1][rank]), len(alarms), monitor.measure_scaling_efficiency(1000.0)]


def named(cases: list[Any], detect: str, stride: int = 1) -> list[list[list[Any]]]:
    """On a rank: return what `detect` finds in each case, a history: intervals, each with all ranks' figures."""
    import torch.distributed as dist

    from labkit.course.phase4_production.monitoring.given import Summary
    from labkit.exercises import monitoring

    usual = Summary(9, 0.016, 0.002, 0.002, 1600.0, 1e9, -1, -1, 0.001)
    seen = []
    for history in cases:
        monitor = monitoring.DistributedTrainingMonitor(dist.get_rank(), dist.get_world_size(), stride=stride)
        monitor.history.extend([usual._replace(**figures) for figures in interval] for interval in history)
        seen.append([[alarm.cause, int(alarm.rank)] for alarm in getattr(monitor, detect)()])
    return seen


def judged_losses(series: list[list[float]]) -> list[list[str]]:
    """On a rank: return the verdict on each loss of each series."""
    from labkit.exercises import monitoring

    return [
        [monitor.judge_loss(loss) for loss in losses]
        for losses in series
        for monitor in [monitoring.DistributedTrainingMonitor(0, 1)]
    ]


# Checks ---------------------------------------------------------------------------------------------------------------


@check(points=3, todo=1, title="fingerprint: each bit and each place counts", look_at="fingerprint: weights and sum")
def hashes(submission: Submission, ranks: Ranks) -> None:
    plain = torch.tensor([5, 7, 9, 11, 13, 15])
    numbers = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    cases: list[tuple[Tensor, Tensor, bool, str]] = [
        (plain, plain.clone(), True, "5, 7, 9, 11, 13, 15 and a copy"),
        (plain, torch.tensor([5, 9, 7, 11, 13, 15]), False, "7 and 9 exchanged"),
        (plain, torch.tensor([6, 7, 9, 11, 13, 14]), False, "1 added to the first, subtracted from the last"),
        (plain, torch.tensor([5, 8, 7, 12, 13, 15]), False, "1, -2 and 1 added to 7, 9 and 11"),
        (plain, torch.tensor([5 + (1 << 62), 7, 9, 11, 13, 15]), False, "the highest bit but one of 5"),
        (plain, torch.tensor([5, 7 - (1 << 63), 9, 11, 13, 15]), False, "the sign bit of 7"),
        (numbers, numbers.mT.contiguous().mT, True, "a matrix, and the same one column by column in memory"),
        (numbers, torch.nextafter(numbers, torch.tensor(0.0)), False, "the next smaller float32"),
        (numbers.bfloat16(), numbers.bfloat16() + 0.125, False, "bfloat16, some of them larger"),
        (torch.tensor([True, False]), torch.tensor([False, True]), False, "True, False and False, True"),
    ]
    inputs = [Args([case[side] for case in cases]) for side in (0, 1)]
    first, second = ranks(2).call(submission.used_by(fingerprints), inputs).values
    for left, right, (_, _, equal, text) in zip(first, second, cases, strict=True):
        expect(left == right, f"whether the fingerprints on two ranks are equal: {text}").equals(equal)


def layers(changed: str) -> Args:
    """Return parameters and gradients of three layers. changed: "layer1", "layer1.grad", "layer1.missing"; "": none."""
    values, grads = [torch.arange(4.0) + n for n in range(3)], [torch.zeros(4) for _ in range(3)]
    layer, _, kind = changed.partition(".")
    number = int(layer[-1:] or -1)
    if changed and kind != "missing":
        (grads if kind else values)[number][2] += 2.0**-20
    return Args(values, grads, [number] if kind == "missing" else [])


@check(
    points=4,
    todo=1,
    title="check_gradient_sync: tensor and rank, by one all-gather of 8 bytes each",
    look_at="check_gradient_sync: the row of this rank, and the most frequent value of each column",
)
def synchronized(submission: Submission, ranks: Ranks) -> None:
    for changed, culprits, world_size, wanted in (
        ("layer1", [], 3, []),
        ("layer1", [2], 3, [["desynchronized", 2, "layer1"]]),
        ("layer1", [0], 3, [["desynchronized", 0, "layer1"]]),
        ("layer2.grad", [1], 3, [["desynchronized", 1, "layer2.grad"]]),
        ("layer0.missing", [1], 3, [["desynchronized", 1, "layer0.grad"]]),
        ("layer1", [1], 2, [["desynchronized", 0, "layer1"], ["desynchronized", 1, "layer1"]]),
    ):
        given = [layers(changed if rank in culprits else "") for rank in range(world_size)]
        run = ranks(world_size).call(submission.used_by(compared), given)
        what = f"alarms where ranks {culprits} of {world_size} differ in {changed}" if culprits else "alarms, all equal"
        hint = "of two ranks nobody knows which one is right: more than half must agree"
        expect(run.values, what, look_at=hint if world_size == 2 else "").equals([wanted] * world_size)
        seen = [(event.operation, event.nbytes) for event in run.trace.collectives(0)]
        expect(len(seen), f"collectives for 3 parameters and 3 gradients: {seen}").equals(1)
        expect(seen[0][1], "bytes of a rank in it", unit="bytes").at_most(48)


@check(
    points=4,
    todo=3,
    title="split and summarize: what a typical step's time goes into",
    look_at="split: every timed part counts; summarize: medians, and samples over seconds",
)
def parts_of_steps(submission: Submission, ranks: Ranks) -> None:
    # milliseconds of compute, input and communication; one step is long
    plan = [[10, 2, 3], [90, 40, 50], [12, 3, 5], [11, 4, 4], [12, 2, 3]]
    kinds = {name: work(name, 0.001) for name in ("compute", "load", "talk")}
    run = ranks(2).call(submission.used_by(stepped), [Args(plan, **kinds)] * 2)
    if run.trace.clock != "modelled":
        raise NotMeasurable("times are checked on virtual ranks, where they are exact")
    for rank, (summary, alarms, efficiency) in enumerate(run.values):
        for name, place, wanted in (("compute", 1, 0.012), ("communication", 2, 0.004), ("input", 3, 0.003)):
            what = (
                f"seconds of {name}, rank {rank}: median of steps with {[row[[0, 2, 1][place - 1]] for row in plan]} ms"
            )
            hint = "several timed parts of a kind add up; compute is what remains of `step.seconds`"
            expect([torch.tensor(summary[place])], what, look_at=hint).close_to([torch.tensor(wanted)], rel=0.01)
        what = f"samples per second of rank {rank}: {30 + rank} in each of 5 steps, 251 ms together"
        hint = "all samples over all seconds of the interval"
        right = torch.tensor(5 * (30 + rank) / 0.251)
        expect([torch.tensor(summary[4])], what, look_at=hint).close_to([right], rel=0.01)
        expect(summary[5], "memory: the least of 1000, 1010, 1020, 1030 and 1040 bytes").equals(1000.0)
        expect(alarms, "alarms").equals(0)
        share = torch.tensor(5 * 61 / 0.251 / 2000)
        what = "scaling efficiency, where one rank alone has 1000 samples per second"
        expect([torch.tensor(efficiency)], what).close_to([share], rel=0.01)


@check(
    points=2,
    todo=3,
    title="measure_communication_time: a message around the ring",
    look_at="measure_communication_time: source and destination modulo the world size; the clock before and after",
)
def probes(submission: Submission, ranks: Ranks) -> None:
    for stride in (1, 2):
        run = ranks(3).call(submission.used_by(probed), [Args(1_000_000, stride)] * 3)
        for rank in range(3):
            sent = [(event.peer, event.nbytes) for event in run.trace.of(rank, Kind.SEND)]
            what = f"messages of rank {rank} of 3 with stride {stride}: to whom, bytes"
            expect(sent, what).equals([((rank + stride) % 3, 1_000_000)])
            if run.trace.clock == "modelled":
                (event,) = run.trace.of(rank, Kind.RECEIVE)
                seen, wanted = torch.tensor(run.values[rank]), torch.tensor(event.end - event.start)
                expect([seen], "seconds until it is here").close_to([wanted], rel=0.02)


@check(points=3, todo=4, title="outliers: median and deviation", look_at="outliers: both conditions must hold")
def deviations(submission: Submission, ranks: Ranks) -> None:
    cases: list[tuple[list[float], float, list[int], str]] = [
        ([1.0, 1.0, 1.0, 1.3], 1.15, [3], "one slow rank"),
        ([1.0, 1.3], 1.15, [1], "of two ranks the slower one: the median is the lower value"),
        ([1.0, 1.0, 1.0, 1.1], 1.15, [], "1.1 is less than 1.15 times the median"),
        ([1.0, 1.4, 1.8, 2.2, 2.6], 1.15, [], "spread widely: the deviation is 1.4826 * 0.4, and nobody is 5 above"),
        ([1.0, 1.0, 1.01, 0.99, 0.2], 1.15, [], "a fast rank is no problem"),
        ([1.0, 1.01, 0.99, 1.0, 1.4, 500.0], 1.15, [4, 5], "a mean would be 84, and 1.4 far below it"),
        ([0.0, 0.0, 0.0], 1.5, [], "nothing measured"),
    ]
    (seen,) = ranks(1).call(submission.used_by(found_outliers), [Args([list(case[:2]) for case in cases])]).values
    for (values, factor, wanted, why), outliers in zip(cases, seen, strict=True):
        expect(outliers, f"outliers of {values} by a factor of {factor}: {why}").equals(wanted)


def history(length: int = 3, **of_rank_1: float) -> list[list[dict[str, float]]]:
    """Return a history of 3 ranks, of which rank 1 has these figures."""
    return [[{}, dict(of_rank_1), {}] for _ in range(length)]


@check(
    points=4,
    todo=4,
    title="detect_stragglers: compute, input and links are told apart",
    look_at="detect_stragglers: own time is compute and input; the link of a rank is at the end of two probes",
)
def stragglers(submission: Submission, ranks: Ranks) -> None:
    waiting = [
        [{"communication_seconds": 0.007}, {"compute_seconds": 0.021}, {"communication_seconds": 0.007}]
        for _ in range(3)
    ]
    # the probe from rank 0 to 1 and that from 1 to 2 are slow: they meet at rank 1
    slow_link = [[{}, {"link_seconds": 0.003}, {"link_seconds": 0.003}] for _ in range(3)]
    one_probe = [[{}, {}, {"link_seconds": 0.003}] for _ in range(3)]
    once = [*history(1, compute_seconds=0.1), *history(2)]
    cases = [
        ("no rank is slow", history(), []),
        ("rank 1 computes 21 ms, others 16, and wait for it", waiting, [["slow compute", 1]]),
        ("rank 1 waits 8 ms for input, others 2", history(input_seconds=0.008), [["slow input", 1]]),
        ("rank 1 waits 1 ms more for input, 1/18 of the time", history(input_seconds=0.003), []),
        ("probes to ranks 1 and 2 take 3 ms, to rank 0 1 ms", slow_link, [["slow link", 1]]),
        ("one probe alone is slow: its two ends have fast ones, too", one_probe, []),
        ("rank 1 was slow in one of three intervals", once, []),
        ("two intervals are not enough", history(2, compute_seconds=0.1), []),
    ]
    histories = [case for _, case, _ in cases]
    run = ranks(3).call(submission.used_by(named), [Args(histories, "detect_stragglers")] * 3)
    for number, (text, _, wanted) in enumerate(cases):
        expect([value[number] for value in run.values], f"stragglers: {text}").equals([wanted] * 3)
    # three nodes with two ranks each: probes into and out of the second node, ranks 2 and 3, are slow
    slow: dict[str, float] = {"link_seconds": 0.003}
    pairs = [[{}, {}, slow, slow, slow, slow] for _ in range(3)]
    six = ranks(6).call(submission.used_by(named), [Args([pairs], "detect_stragglers", 2)] * 6)
    what = "stragglers: stride 2, probes to ranks 2, 3, 4 and 5 take 3 ms, others 1 ms"
    hint = "rank r is at the sending end of the probe of rank r + stride"
    expect([value[0] for value in six.values], what, look_at=hint).equals([[["slow link", 2], ["slow link", 3]]] * 6)


@check(points=2, todo=2, title="detect_leaks: memory that rises again and again", look_at="detect_leaks")
def leaks(submission: Submission, ranks: Ranks) -> None:
    def growing(*gigabytes: float) -> list[list[dict[str, float]]]:
        return [[{}, {"memory_bytes": 1e9 * amount}, {}] for amount in gigabytes]

    cases = [
        ("1, 1.1, 1.2, 1.3", growing(1, 1.1, 1.2, 1.3), [["memory leak", 1]]),
        ("1, 1, 1.4, 1.4: it rose once", growing(1, 1, 1.4, 1.4), []),
        ("1, 1.2, 1.1, 1.3: it fell in between", growing(1, 1.2, 1.1, 1.3), []),
        ("1, 1.01, 1.02, 1.03: less than 3 % each", growing(1, 1.01, 1.02, 1.03), []),
        ("1, 1.1, 1.2: three intervals are not enough", growing(1, 1.1, 1.2), []),
    ]
    histories = [case for _, case, _ in cases]
    run = ranks(3).call(submission.used_by(named), [Args(histories, "detect_leaks")] * 3)
    for number, (text, _, wanted) in enumerate(cases):
        expect([value[number] for value in run.values], f"leaks: rank 1 has {text} GB").equals([wanted] * 3)


@check(
    points=3,
    todo=2,
    title="judge_loss: NaN, infinity, spikes",
    look_at="judge_loss: `isfinite` first; what is compared with which losses; what is remembered",
)
def losses(submission: Submission, ranks: Ranks) -> None:
    nan, inf = float("nan"), float("inf")
    bad, spike = "loss not finite", "loss spike"
    falling = [3.0, 2.9, 2.7, 2.6, 2.4, 2.3, 2.1, 2.0, 1.9, 1.8, 1.7, 1.6]
    cases: list[tuple[list[float], str, str]] = [
        ([1.0, nan], bad, "1 and NaN"),
        ([1.0, inf], bad, "1 and infinity"),
        ([1.0, -inf], bad, "1 and -infinity"),
        ([1.0] * 12 + [1.3], "", "1, twelve times, and 1.3: the deviation is 5 % of 1 at least"),
        ([1.0] * 12 + [1.5], spike, "1, twelve times, and 1.5"),
        ([1.0] * 9 + [9.0], "", "1, nine times, and 9: ten are needed before"),
        ([-2.0] * 12 + [-1.0], spike, "-2, twelve times, and -1"),
        ([*falling, 1.7], "", "losses from 3 to 1.6, and 1.7"),
        ([*falling, 12.0], spike, "losses from 3 to 1.6, and 12"),
        ([*falling, 0.1], "", "losses from 3 to 1.6, and 0.1"),
        ([nan] * 12 + [9.0], "", "NaN, twelve times, and 9: NaN is not remembered"),
        ([1.0] * 12 + [9.0, 9.0], spike, "1, twelve times, then 9 twice"),
        ([1.0] * 12 + [3.0] * 20, "", "1, twelve times, then 3 twenty times: that is usual now"),
    ]
    (seen,) = ranks(1).call(submission.used_by(judged_losses), [Args([case for case, _, _ in cases])]).values
    for verdicts, (_, wanted, text) in zip(seen, cases, strict=True):
        expect(verdicts[-1], f"verdict on the last loss: {text}").equals(wanted)


HINTS = {
    1: [
        "Words 7 and 9 at places 2 and 3, and exchanged: 2 * 7 + 3 * 9 is not 2 * 9 + 3 * 7. But add 1, -2 and 1 to "
        "three neighbours: with the weights 1, 2, 3, ... nothing changes. Which weights have no such pattern?",
        "Mix the place's number as hash functions do: multiply `torch.arange(...)` by a large odd constant, xor it "
        "with itself shifted right, multiply again; `| 1` makes it odd. In `check_gradient_sync`, stack the "
        "fingerprints of all tensors to one row, gather the rows, and look at each column: "
        "`Counter(column).most_common(1)`.",
        "`weight = torch.arange(1, words.numel() + 1, device=words.device) * 0x1E3779B97F4A7C15`, then `weight = "
        "(weight ^ (weight >> 31)) * 0x3F58476D1CE4E5B9`, and `(words * ((weight ^ (weight >> 29)) | 1)).sum()`. An "
        "alarm for each rank whose value is not the usual one; for all of them if `2 * count <= self.world_size`.",
    ],
    2: [
        "A cache that is filled makes memory rise once; a leak makes it rise in every interval. A loss of NaN: what "
        "is `nan > limit`? What is the median of a list with a NaN in it?",
        "A leak: each of the 4 intervals has more than 1.03 times the memory of the one before; `pairwise` gives "
        "the neighbours. A loss: first `isfinite`; then compare with median and deviation of `self.losses`, if "
        "there are 10; then append it, spike or not.",
        "`all(after > 1.03 * before for before, after in pairwise(own))` for each rank's `own` memory, if there are "
        "4 intervals. `spike = loss > usual + 8 * max(deviation, 0.05 * abs(usual))`, `self.losses.append(loss)`.",
    ],
    3: [
        "A step of 20 ms has the parts `[('input', 0.002), ('communication', 0.003), ('input', 0.001)]`. How long "
        "did it compute? In the summary, one step of 200 ms among ten of 20 ms should not be seen in the times at "
        "all.",
        "Add up the seconds of each kind; compute is `step.seconds` without both sums. `zip(*parts, strict=True)` "
        "turns the steps' three numbers into three columns, whose medians you need. The probe comes from rank - "
        "stride and goes to rank + stride, both modulo the world size.",
        "`compute, communication, wait = (median(column) for column in zip(*parts, strict=True))`; throughput is "
        "`sum(step.samples for step in steps) / sum(step.seconds for step in steps)`, memory the `min` of "
        "`step.memory_bytes`. `began = given.now(self.device)`; `sending = given.pass_around(source, destination, "
        "nbytes, self.device, self.group)`; the difference of the clock; `sending.wait()`; return the difference.",
    ],
    4: [
        "Ranks compute 16, 16 and 21 ms. How long does each wait in the all-reduce? So whose communication is "
        "longest, and is that the slow one? If the probes into ranks 1 and 2 are slow and the others fast, whose "
        "card is it?",
        "`outliers` of compute + input names the rank; the part that is further above its own median names the "
        "cause. A rank is at the receiving end of its own probe, and at the sending end of that of the rank "
        "`stride` after it: its link is slow if both are, so take the smaller one.",
        "`of_all > factor * usual` and `of_all > usual + 5 * deviation`, with `deviation = 1.4826 * (of_all - "
        "usual).abs().median()`. `links = [min(probe[rank], probe[(rank + self.stride) % self.world_size]) for rank "
        "in range(self.world_size)]`, and the outliers of these by 1.5.",
    ],
}
