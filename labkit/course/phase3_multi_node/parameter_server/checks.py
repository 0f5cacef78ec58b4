"""Visible checks and hints of parameter_server: small runs, so that a wrong number can be traced by hand.

All weights start at 0, the learning rate is 1, and each worker pushes the same gradient in each step: -1 from the first
worker, -10 from the second, -100 from the third. So a digit of a pulled weight is the number of a worker's pushes that
are in it: 203 means that worker 0 has pushed three times, worker 1 never and worker 2 twice. With `sync` gradients are
multiplied by the number of samples of all workers, so a digit counts a worker's samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from labkit.checks import Args, Draw, NotMeasurable, Ranks, RankSet, Submission, check, expect, work
from labkit.clusters import Run
from labkit.clusters.virtual import kill
from labkit.course.phase3_multi_node.parameter_server.scenarios import pieces_of, played
from labkit.trace import Event, Kind

# What runs on the ranks -----------------------------------------------------------------------------------------------


def stepped(totals: list[float], samples: list[int], momentum: float, dtype: str = "float32") -> list[Any]:
    """On a rank: rank 0 takes steps with these sums of gradients; return weight, sum and samples after each."""
    from functools import partial

    import torch
    import torch.distributed as dist

    from labkit.exercises import parameter_server

    weight = torch.zeros(2, dtype=getattr(torch, dtype), requires_grad=True)
    if dist.get_rank():
        parameter_server.Worker([weight])
        return []
    server = parameter_server.ParameterServer([weight], partial(torch.optim.SGD, lr=1.0, momentum=momentum))
    found = []
    for total, count in zip(totals, samples, strict=True):
        server.totals[0].fill_(total)
        server.samples = count
        server.step()
        found.append([server.parameters[0][1].item(), server.totals[0][1].item(), server.samples])
    return found


# What the checks read -------------------------------------------------------------------------------------------------


def run_of(
    submission: Submission,
    some: RankSet,
    samples: Sequence[list[int]],
    mode: str = "sync",
    staleness: int | None = None,
    *,
    num_servers: int = 1,
    seconds: Sequence[float] | None = None,
    times: float = 1.0,
    numel: int = 4,
    momentum: float = 0.0,
    attempt: bool = False,
) -> Run:
    """Let workers make a step for each of their `samples`, of `seconds`; worker i pushes -times * 10 ** i."""
    more = (num_servers, mode, staleness, ("SGD", {"lr": 1.0, "momentum": momentum}), False)
    given = [Args([torch.zeros(numel)], [], [], *more, None)] * num_servers
    for index, counts in enumerate(samples):
        step = work("step", seconds[index]) if seconds else None
        gradient = torch.full((numel,), -times * 10.0**index)
        given.append(Args([torch.zeros(numel)], [[gradient]] * len(counts), counts, *more, step))
    call = some.attempt if attempt else some.call
    run = call(submission.used_by(played), given)
    if seconds and run.trace.clock != "modelled":
        raise NotMeasurable("who waits for whom is checked on virtual ranks: their steps take exact times")
    called = sorted({event.operation for event in run.trace.collectives()})
    expect(called, "library collectives", look_at="`self.messages` sends and receives all").equals([])
    return run


def pulled(run: Run) -> list[Any]:
    """Return the weight of each pull, for each rank that has pulled; all elements where they differ."""

    def weight_in(values: list[float]) -> Any:
        return values[0] if len(set(values)) == 1 else values

    return [value and [weight_in(weight.tolist()) for (weight,) in value] for value in run.values]


def steps(run: Run, rank: int) -> list[Event]:
    """Return the steps of a worker, in order."""
    return sorted(event for event in run.trace.of(rank, Kind.COMPUTE) if event.operation == "step")


def each(values: Sequence[float], workers: int) -> list[list[float]]:
    return [list(values) for _ in range(workers)]


# Checks ---------------------------------------------------------------------------------------------------------------


@check(
    points=4,
    todo=1,
    title="partition: each server gets the same bytes, large tensors are cut",
    look_at="partition: where the present server's part ends, in bytes",
)
def balanced(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases = [
        ([12], ["float32"], 3),
        ([6, 3, 1, 2], ["float32"] * 4, 3),
        ([50, 80, 0, 30], ["float64", "float32", "float32", "bfloat16"], 2),
        ([draw.randrange(40, 60), 7, draw.randrange(2, 9)], ["float32"] * 3, 4),
        ([2], ["float32"], 3),
    ]
    for sizes, dtypes, servers in cases:
        (shards,) = ranks(1).call(submission.used_by(pieces_of), [Args(sizes, dtypes, servers)]).values
        case = f"parameters of {', '.join(map(str, sizes))} elements on {servers} servers"
        expect(len(shards), f"{case}: number of shards").equals(servers)
        pieces = [piece for shard in shards for piece in shard]
        elements = [(index, place) for index, start, stop in pieces for place in range(start, stop)]
        wanted = [(index, place) for index, size in enumerate(sizes) for place in range(size)]
        hint = "a piece ends where the next one begins: `stop` is excluded"
        expect(sorted(elements) == wanted, f"{case}: each element in one piece", look_at=hint).holds(f"pieces {shards}")
        expect(elements == wanted, f"{case}: pieces in the parameters' order").holds(f"pieces {shards}")
        empty = [piece for piece in pieces if piece[1] >= piece[2]]
        expect(empty, f"{case}: empty pieces").equals([])
        most = sum(size > 0 for size in sizes) + servers - 1
        expect(len(pieces), f"{case}: number of pieces, of which a cut makes one more").at_most(most)
        itemsize = {"float64": 8, "float32": 4, "bfloat16": 2}
        total = sum(size * itemsize[dtype] for size, dtype in zip(sizes, dtypes, strict=True))
        largest = max(itemsize[dtype] for dtype in dtypes)
        for server, shard in enumerate(shards):
            nbytes = sum((stop - start) * itemsize[dtypes[index]] for index, start, stop in shard)
            what = f"{case}: bytes of server {server}, whose share is {total / servers:.5g}"
            expect(abs(nbytes - total / servers) < 2 * largest, what).holds(f"{nbytes} bytes")


@check(
    points=3,
    todo=2,
    title="step: the mean over the samples, once",
    look_at="step: what it divides by, and what it leaves behind",
)
def step(submission: Submission, ranks: Ranks) -> None:
    run = ranks(2).call(submission.used_by(stepped), [Args([8.0, 6.0], [4, 2], 0.0)] * 2)
    seen = run.values[0] or [[None] * 3] * 2
    expect([row[0] for row in seen], "weight after sums 8 of 4 samples and 6 of 2, learning rate 1").equals(
        [-2.0, -5.0]
    )
    expect([row[1] for row in seen], "`totals` after each step").equals([0.0, 0.0])
    expect([row[2] for row in seen], "`samples` after each step").equals([0, 0])
    run = ranks(2).call(submission.used_by(stepped), [Args([2.0, 0.0], [1, 0], 0.5)] * 2)
    seen = run.values[0] or [[None] * 3] * 2
    hint = "with momentum, a step with a gradient of 0 still moves: without samples there is no step"
    expect([row[0] for row in seen], "weight after a step, and after one without samples", look_at=hint).equals(
        [-2.0, -2.0]
    )
    run = ranks(2).call(submission.used_by(stepped), [Args([8.0], [4], 0.0, "bfloat16")] * 2)
    hint = "the sum is float32, the gradient of a bfloat16 parameter is bfloat16"
    expect((run.values[0] or [[None]])[0][0], "bfloat16 weight after a sum of 8, 4 samples", look_at=hint).equals(-2.0)


@check(
    points=4,
    todo=4,
    title="sync: one step for each clock, with all workers' pushes",
    look_at="serve: when a step is due, and which pulls it allows",
)
def sync(submission: Submission, ranks: Ranks) -> None:
    run = run_of(submission, ranks(4), [[1, 1]] * 3, times=3)
    what = "weights that workers 0-2 pulled before clocks 0, 1 and 2, a digit for each worker"
    expect(pulled(run)[1:], what).equals(each([0.0, 111.0, 222.0], 3))
    run = run_of(submission, ranks(2), [[1, 1, 1]])
    expect(pulled(run)[1:], "weights that a single worker pulled").equals([[0.0, 1.0, 2.0, 3.0]])
    run = run_of(submission, ranks(4), [[1, 1, 1]] * 3, times=3, momentum=1.0)
    what = "weights with momentum 1: after one step 111, after two 111 + 222, after three 111 + 222 + 333"
    hint = "the optimizer, with its state, is on the server, and takes one step for each clock"
    expect(pulled(run)[1:], what, look_at=hint).equals(each([0.0, 111.0, 333.0, 666.0], 3))
    if run.trace.clock != "modelled":
        return
    run = run_of(submission, ranks(4), [[1]] * 3, times=3, seconds=[0.03, 0.02, 0.01])
    expect(pulled(run)[1:], "weights of workers 0-2, of which the last is the fastest").equals(each([0.0, 111.0], 3))
    answered = {rank: max(event.end for event in run.trace.of(rank, Kind.RECEIVE)) for rank in (1, 2, 3)}
    order = [rank - 1 for rank in sorted(answered, key=lambda rank: answered[rank])]
    hint = "worker 2 asked first, then worker 1, then worker 0"
    expect(order, "workers in the order in which their last pulls were answered", look_at=hint).equals([2, 1, 0])


@check(
    points=2,
    todo=4,
    title="sync: workers count by their samples",
    look_at="`samples`, from push to the mean",
)
def weighted(submission: Submission, ranks: Ranks) -> None:
    run = run_of(submission, ranks(4), [[1], [3], [2]], times=6)
    expect(pulled(run)[1:], "weights after 1, 3 and 2 samples of workers 0, 1 and 2").equals(each([0.0, 231.0], 3))
    run = run_of(submission, ranks(4), [[2], [0], [1]], times=3)
    expect(pulled(run)[1:], "weights after 2, 0 and 1 samples of workers 0, 1 and 2").equals(each([0.0, 102.0], 3))


@check(
    points=3,
    todo=4,
    title="async: each push is a step, and nobody waits for others",
    look_at="serve: with async every pull is answered at once",
)
def asynchronous(submission: Submission, ranks: Ranks) -> None:
    run = run_of(submission, ranks(3), [[1] * 5, [1]], "async", seconds=[0.01, 0.1])
    hint = "the first worker takes 10 ms for a step, the second 100 ms: the first one sees only its own pushes"
    expect(pulled(run)[1], "weights that the fast worker pulled", look_at=hint).equals([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    expect(pulled(run)[2], "weights that the slow worker pulled", look_at=hint).equals([0.0, 15.0])
    taken = steps(run, 1)[-1].end
    expect(taken, "time at which the fast worker ends 5 steps of 10 ms", unit="seconds").at_most(0.055)
    run = run_of(submission, ranks(3), [[4] * 2, [4] * 2], "async", seconds=[0.01, 0.025], momentum=1.0)
    hint = "each push is a step of its own, in the order of arrival: velocities 1, 2, 12 and 22 with momentum 1"
    expect(pulled(run)[2], "weights that the slow worker pulled, with momentum 1", look_at=hint).equals(
        [0.0, 15.0, 37.0]
    )


@check(
    points=4,
    todo=4,
    title="ssp: at most `staleness` clocks ahead, and no waiting before that",
    look_at="serve: which clocks the slowest worker must have reached before a pull is answered",
)
def stale(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    seconds = [0.01, 0.012, 0.05]
    for staleness in (1, draw.choice([0, 2])):
        run = run_of(submission, ranks(4), [[1] * 6, [1] * 6, [1] * 4], "ssp", staleness, seconds=seconds)
        by_worker = [steps(run, rank) for rank in (1, 2, 3)]
        for worker, own in enumerate(by_worker):
            expect(len(own), f"steps of worker {worker}").equals([6, 6, 4][worker])
            for clock in range(1, len(own)):
                finished = [all_of[clock - staleness - 1].end for all_of in by_worker if 0 <= clock - staleness - 1 < 4]
                allowed, what = max(finished, default=0.0), f"worker {worker} begins clock {clock}"
                limit = f"with staleness {staleness}, after all have finished clock {clock - staleness - 1}"
                if clock - staleness - 1 < 4:  # the third worker leaves after four
                    expect(own[clock].start, f"time at which {what}, {limit}", unit="seconds").at_least(allowed)
                    soon = max(allowed, own[clock - 1].end) + 0.002
                    hint = "a pull may be answered as soon as the bound holds: it is held too long"
                    expect(own[clock].start, f"time at which {what}", unit="seconds", look_at=hint).at_most(soon)


@check(
    points=2,
    todo=4,
    title="several servers: all are asked at once, and one that dies is named",
    look_at="Worker: all messages begin before the first `wait()`",
)
def several_servers(submission: Submission, ranks: Ranks) -> None:
    run = run_of(submission, ranks(5), [[1, 1]] * 2, num_servers=3, times=2, numel=7)
    expect(pulled(run)[3:], "weights of 7 elements on 3 servers, pulled by 2 workers").equals(
        each([0.0, 11.0, 22.0], 2)
    )
    if run.trace.clock != "modelled":
        return
    for rank in (3, 4):
        requests = sorted(e.start for e in run.trace.of(rank, Kind.SEND) if e.group != "0")  # which carries payloads
        answers = sorted(e.end for e in run.trace.of(rank, Kind.RECEIVE))
        expect(len(requests), f"requests of worker {rank - 3}: for 3 pulls, 2 pushes and the end, to 3 servers").equals(
            18
        )
        expect(requests[2], "time at which the third server is asked", unit="seconds").at_most(answers[0])
    some = ranks(4, faults=[kill(1, at=0.015)])
    run = run_of(submission, some, [[1] * 3] * 2, num_servers=2, seconds=[0.01] * 2, attempt=True)
    hint = "`wait()` raises ServerStopped, which names the server: let it through"
    for rank in (2, 3):
        error = run.ranks[rank].error
        expect(error.type if error else "none", "error of a worker when a server dies", look_at=hint).equals(
            "ServerStopped"
        )


@check(
    points=3,
    todo=4,
    title="a worker that finishes, or dies, does not stop the others",
    look_at="serve: what a worker that leaves may allow",
)
def leaving(submission: Submission, ranks: Ranks) -> None:
    run = run_of(submission, ranks(4), [[1, 1, 1], [1, 1, 1], [1]], times=6)
    hint = "from clock 1 on, the mean is over two workers: 66 / 2"
    what = "weights with sync, when worker 2 finishes after one clock"
    expect(pulled(run)[1:3], what, look_at=hint).equals(each([0.0, 222.0, 255.0, 288.0], 2))
    for mode, staleness in (("async", None), ("ssp", 1), ("sync", None)):
        some = ranks(4, faults=[kill(3, at=0.025)])
        run = run_of(submission, some, [[1] * 5] * 3, mode, staleness, seconds=[0.01] * 3, times=6, attempt=True)
        for rank in (0, 1, 2):
            result = run.ranks[rank]
            failed = "" if result.error is None else f"{result.error.type}: {result.error.message}"
            name = f"worker {rank - 1}" if rank else "the server"
            expect(failed, f"error of {name} with {mode}, when worker 2 dies in its third step").equals("")
        expect([len(steps(run, rank)) for rank in (1, 2)], f"steps of workers 0 and 1 with {mode}").equals([5, 5])
        if mode == "sync":
            hint = "the mean is over the samples of those who have pushed: 66 / 2 once worker 2 is dead"
            wanted = each([0.0, 222.0, 444.0, 477.0, 510.0, 543.0], 2)
            expect(pulled(run)[1:3], "weights with sync, when worker 2 dies", look_at=hint).equals(wanted)


HINTS = {
    1: [
        "Three servers, parameters of 6, 3, 1 and 2 elements of 4 bytes: 48 bytes, 16 for each server. Write down the "
        "pieces by hand. Which numbers did you have to remember while you went from parameter to parameter?",
        "Remember the present server, how many bytes are already placed, and, inside a parameter, the element at which "
        "the next piece starts. The present server has room for `total * (server + 1) // num_servers - placed` bytes: "
        "that is room // element_size elements. If the parameter is not finished after that, the server is full.",
        "`while start < parameter.numel():` `room = total * (server + 1) // num_servers - placed`; `stop = "
        "min(parameter.numel(), start + room // parameter.element_size())`; add `Piece(index, start, stop)` to "
        "`shards[server]` unless it is empty; add its bytes to `placed`; `start = stop`; and if `start` is not yet at "
        "the parameter's end, `server += 1`.",
    ],
    2: [
        "`add` has multiplied each gradient by its samples. By what do you divide the sum to get the mean over all "
        "samples? And what would the next step see if `totals` kept its values?",
        "An optimizer reads `parameter.grad`. It must have the parameter's dtype: `totals` may have a wider one. With "
        "momentum, or weight decay, even a gradient of 0 moves a weight: so without samples, no step.",
        "If `self.samples`: for each parameter and total, `parameter.grad = (total / self.samples)"
        ".to(parameter.dtype)` and `total.zero_()`; then `self.optimizer.step()`, unless the shard is empty: then "
        "there is no optimizer. Last, `self.samples = 0`.",
    ],
    3: [
        "Forget the modes first: which worker is the slowest, and what is its clock? A pull of clock c wants the "
        "result of clock c - 1. With sync, whose pushes must have arrived? With ssp and staleness 2, of which clock?",
        "Keep one list of pulls without an answer. After each request, whatever its kind, compute `slowest = "
        "min(self.clocks.values(), default=inf)`. With async and ssp, step after each push. With sync, step when the "
        "slowest has passed the clock that is to be completed. Then answer the pulls that may be answered.",
        "A pull may be answered if `pull.clock - self.staleness <= slowest`: one line for all three modes. The order "
        "of the list is the order of arrival; take out what you answer.",
        "`match request.kind:` with `case Kind.PULL: waiting.append(request)`; `case Kind.PUSH: self.add(request)` and "
        "`self.clocks[request.worker] = request.clock + 1`; `case Kind.FINISH | Kind.DIED: del "
        'self.clocks[request.worker]`. Then `if self.mode != "sync" or slowest > complete: self.step()` and '
        "`complete = slowest`. Then the answers.",
    ],
    4: [
        "If you wait for the first server before you ask the second one, the second one is idle meanwhile. What has to "
        "happen in a first loop, and what in a second one?",
        "`self.messages.pull(...)` only begins: the values are in `shard.buffers` after `wait()`, and `copy_to` "
        "belongs after that. In `push`, `copy_from` belongs before the message, since it fills `shard.buffers`.",
        "pull: `works = [self.messages.pull(server, self.clock, shard.buffers) for server, shard in "
        "enumerate(self.shards)]`, then for each work and shard `work.wait()` and `shard.copy_to(self.parameters)`. "
        "push: for each shard `shard.copy_from([parameter.grad for parameter in self.parameters])` and append "
        "`self.messages.push(server, self.clock, samples, shard.buffers)`; then wait for all.",
    ],
}
