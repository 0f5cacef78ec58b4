"""Visible checks and hints of parameter_server: small runs, so that a wrong number can be traced by hand.

All weights start at 0, the learning rate is 1, and each worker pushes the same gradient in each step: -1 from the first
worker, -10 from the second, -100 from the third. So a digit of a pulled weight is the number of a worker's pushes that
are in it: 203 means that worker 0 has pushed three times, worker 1 never and worker 2 twice. With `sync` gradients are
multiplied by the number of samples of all workers, so a digit counts a worker's samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import torch

from labkit.checks import Args, Draw, NotMeasurable, Ranks, RankSet, Submission, check, expect, work
from labkit.clusters import Run
from labkit.clusters.virtual import kill
from labkit.course.phase3_multi_node.parameter_server.scenarios import pieces_of, played
from labkit.trace import Event, Kind

# What runs on the ranks -----------------------------------------------------------------------------------------------


def stepped(pushes: list[list[tuple[float, int]]], momentum: float, dtype: str) -> list[Any]:
    """On a rank: a server alone adds pushes, (gradient, samples), and steps; return weight, sum, samples after each."""
    import torch
    from torch import nn

    from labkit.exercises import parameter_server

    server = object.__new__(parameter_server.ParameterServer)  # without messages: only `add` and `step` run
    weight = nn.Parameter(torch.zeros(2, dtype=getattr(torch, dtype)))
    server.parameters, server.totals, server.samples = [weight], [torch.zeros(2)], 0
    server.optimizer = torch.optim.SGD([weight], lr=1.0, momentum=momentum)
    found = []
    for step in pushes:
        for gradient, samples in step:
            server.add([torch.full((2,), gradient, dtype=weight.dtype)], samples)
        server.step()
        found.append([weight[1].item(), server.totals[0][1].item(), server.samples])
    return found


def added(pushes: list[tuple[float, int]], dtype: str) -> list[float]:
    """On a rank: a server alone adds pushes, (gradient, samples); return its sum and its samples."""
    import torch

    from labkit.exercises import parameter_server

    server = object.__new__(parameter_server.ParameterServer)
    server.totals, server.samples = [torch.zeros(2)], 0
    for gradient, samples in pushes:
        server.add([torch.full((2,), gradient, dtype=getattr(torch, dtype))], samples)
    return [server.totals[0][1].item(), server.samples]


def served(mode: str, staleness: float, script: str) -> list[str]:
    """On a rank: a server alone serves the requests of a script, such as `pull 1, announce 1, push 1, finish 1`.

    Return for each request what `serve` did upon it, such as `push 1: wait 1, step 0+1` if the step takes two pushes.
    """
    from types import SimpleNamespace

    import torch
    from torch import Tensor, nn

    from labkit.exercises import parameter_server

    log: list[list[str]] = []
    requests, pushes = [line.split() for line in script.split(", ")], dict[int, int]()
    kinds = parameter_server.Kind

    class Arriving:
        def __init__(self, worker: int) -> None:
            self.worker = worker

        def wait(self) -> list[Tensor]:
            log[-1].append(f"wait {self.worker}")
            return [torch.full((2,), float(self.worker))]

    class Messages:
        def next_request(self) -> Any:
            if not requests:
                raise RuntimeError("serve must end when all workers have left: there are no more requests")
            name, worker = requests.pop(0)
            log.append([f"{name} {worker}"])
            clock = pushes.get(int(worker), 0)
            if name == "push":
                pushes[int(worker)] = clock + 1
            return SimpleNamespace(worker=int(worker), kind=kinds[name.upper()], clock=clock, samples=1)

        def receive(self, request: Any) -> Arriving:
            log[-1].append(f"receive {request.worker}")
            return Arriving(request.worker)

        def answer(self, pull: Any, values: Any) -> None:
            log[-1].append(f"answer {pull.worker}")

    server = object.__new__(parameter_server.ParameterServer)
    server.mode, server.staleness, server.messages = mode, staleness, Messages()
    server.parameters, server.totals, server.samples = [nn.Parameter(torch.zeros(2))], [torch.zeros(2)], 0
    server.shard = SimpleNamespace(buffers=[server.parameters[0].detach()])
    server.clocks = {int(worker): 0 for _, worker in requests}
    pushed: list[str] = []

    def add(gradients: list[Tensor], samples: int) -> None:
        pushed.append(f"{gradients[0][0]:.0f}")

    def step() -> None:
        if pushed:  # without a push a step changes nothing
            log[-1].append(f"step {'+'.join(sorted(pushed))}")
        pushed.clear()

    server.add, server.step = add, step
    server.serve()
    return [f"{request}: {', '.join(calls)}" for request, *calls in log]


def asked(name: str, servers: int) -> list[str]:
    """On a rank: a worker alone pulls or pushes; return what it did with each server."""
    from types import SimpleNamespace

    import torch

    from labkit.exercises import parameter_server

    log: list[str] = []

    class Shard:
        def __init__(self, server: int) -> None:
            self.server, self.buffers = server, [torch.zeros(1)]

        def copy_to(self, tensors: Any) -> None:
            log.append(f"copy_to {self.server}")

        def copy_from(self, tensors: Any) -> None:
            log.append(f"copy_from {self.server}")

    class Messages:
        def begin(self, server: int, *_: Any) -> Any:
            log.append(f"{name} {server}")
            return SimpleNamespace(wait=lambda: log.append(f"wait {server}"))

        pull = push = begin

    worker = object.__new__(parameter_server.Worker)
    worker.parameters, worker.messages = [torch.zeros(1, requires_grad=True)], Messages()
    worker.shards, worker.clock, worker.pulled = [Shard(server) for server in range(servers)], 0, name == "push"
    getattr(worker, name)()
    return log


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
    points=3,
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
    points=2,
    todo=2,
    title="add: sums over samples",
    look_at="add: what a gradient is multiplied by, and in which dtype it is added",
)
def add(submission: Submission, ranks: Ranks) -> None:
    def sums(pushes: list[tuple[float, int]], dtype: str) -> Any:
        return ranks(1).call(submission.used_by(added), [Args(pushes, dtype)]).values[0]

    what = "`totals` and `samples` after gradients 2 of 3 samples and 5 of 1 sample"
    expect(sums([(2.0, 3), (5.0, 1)], "float32"), what).equals([11.0, 4])
    hint = "sums are float32: 256 + 1 is 256 in bfloat16"
    what = "`totals` and `samples` after bfloat16 gradients 1 of 257 samples and 1 of 2 samples"
    expect(sums([(1.0, 257), (1.0, 2)], "bfloat16"), what, look_at=hint).equals([259.0, 259])
    hint = "the mean over no samples is NaN, and NaN times 0 is NaN: a push of 0 samples adds nothing"
    what = "`totals` and `samples` after gradients 2 of 3 samples and NaN of 0 samples"
    expect(sums([(2.0, 3), (float("nan"), 0)], "float32"), what, look_at=hint).equals([6.0, 3])


@check(
    points=2,
    todo=3,
    title="step: the mean over the samples, once",
    look_at="step: what it divides by, and what it leaves behind",
)
def step(submission: Submission, ranks: Ranks) -> None:
    def rows(pushes: list[list[tuple[float, int]]], momentum: float, dtype: str = "float32") -> list[Any]:
        values: list[Any] = ranks(1).call(submission.used_by(stepped), [Args(pushes, momentum, dtype)]).values[0]
        return values

    seen = rows([[(2.0, 4)], [(3.0, 2)]], 0.0)
    what = "weight after sums 8 of 4 samples and 6 of 2, learning rate 1"
    expect([row[0] for row in seen], what).equals([-2.0, -5.0])
    expect([row[1] for row in seen], "`totals` after each step").equals([0.0, 0.0])
    expect([row[2] for row in seen], "`samples` after each step").equals([0, 0])
    hint = "with momentum, a step with a gradient of 0 still moves: without samples there is no step"
    what = "weight after a step, and after one without samples, momentum 0.5"
    expect([row[0] for row in rows([[(2.0, 1)], []], 0.5)], what, look_at=hint).equals([-2.0, -2.0])
    hint = "the sum is float32, the gradient of a bfloat16 parameter is bfloat16"
    what = "bfloat16 weight after a sum of 8, 4 samples"
    expect(rows([[(2.0, 4)]], 0.0, "bfloat16")[0][0], what, look_at=hint).equals(-2.0)


SCRIPTS: list[tuple[str, float, list[str]]] = [
    (
        "sync",
        0,
        [
            "pull 1: answer 1",
            "pull 2: answer 2",
            "announce 2: receive 2",
            "announce 1: receive 1",
            "push 2: wait 2",
            "pull 2: ",
            "push 1: wait 1, step 1+2, answer 2",
            "pull 1: answer 1",
            "finish 1: ",
            "finish 2: ",
        ],
    ),
    (
        "async",
        inf,
        [
            "pull 1: answer 1",
            "pull 2: answer 2",
            "announce 1: receive 1",
            "announce 2: receive 2",
            "push 1: wait 1, step 1",
            "pull 1: answer 1",
            "push 2: wait 2, step 2",
            "finish 1: ",
            "finish 2: ",
        ],
    ),
    (
        "ssp",
        1,
        [
            "pull 1: answer 1",
            "pull 2: answer 2",
            "announce 1: receive 1",
            "push 1: wait 1, step 1",
            "pull 1: answer 1",
            "announce 1: receive 1",
            "push 1: wait 1, step 1",
            "pull 1: ",
            "announce 2: receive 2",
            "push 2: wait 2, step 2, answer 1",
            "finish 1: ",
            "finish 2: ",
        ],
    ),
    (
        "sync",
        0,
        [
            "pull 1: answer 1",
            "pull 2: answer 2",
            "pull 3: answer 3",
            "announce 1: receive 1",
            "announce 2: receive 2",
            "push 1: wait 1",
            "push 2: wait 2",
            "pull 2: ",
            "pull 1: ",
            "died 3: step 1+2, answer 2, answer 1",
            "finish 1: ",
            "finish 2: ",
        ],
    ),
]
"""Mode, staleness, and the requests of workers 1 to 3 with what `serve` does upon each of them."""


@check(
    points=3,
    todo=4,
    title="serve: it posts receives at once, and does upon each request what the mode says",
    look_at="serve: the first request upon which the two differ",
)
def serves(submission: Submission, ranks: Ranks) -> None:
    for mode, staleness, wanted in SCRIPTS:
        script = ", ".join(line.split(":")[0] for line in wanted)
        (log,) = ranks(1).call(submission.used_by(served), [Args(mode, staleness, script)]).values
        early = [line for line in log if line.startswith("announce") and "wait" in line]
        hint = "`wait()` belongs to PUSH: at ANNOUNCE it holds up all other workers until these gradients have come"
        expect(early, f"announcements upon which serve waits, {mode}", look_at=hint).equals([])
        bound = f"{mode} with staleness {staleness}" if mode == "ssp" else mode
        expect(log, f"what serve does upon each request, {bound}").equals(wanted)


@check(
    points=1,
    todo=5,
    title="pull: all servers are asked before the first answer is awaited",
    look_at="pull: all messages begin before the first `wait()`",
)
def pulls(submission: Submission, ranks: Ranks) -> None:
    (log,) = ranks(1).call(submission.used_by(asked), [Args("pull", 3)]).values
    expect(sorted(log), "calls for 3 servers").equals(
        sorted(f"{call} {server}" for call in ("pull", "wait", "copy_to") for server in range(3))
    )
    expect(sorted(log[:3]), "the first three calls, of which each asks a server").equals(["pull 0", "pull 1", "pull 2"])
    for server in range(3):
        hint = "the values are in the buffers when `wait()` has returned"
        late = log.index(f"wait {server}") < log.index(f"copy_to {server}")
        expect(late, f"server {server}: wait() before copy_to", look_at=hint).holds(", ".join(log))


@check(
    points=1,
    todo=6,
    title="push: all servers get their part at the same time",
    look_at="push: all messages begin before the first `wait()`",
)
def pushes(submission: Submission, ranks: Ranks) -> None:
    (log,) = ranks(1).call(submission.used_by(asked), [Args("push", 3)]).values
    expect(sorted(log), "calls for 3 servers").equals(
        sorted(f"{call} {server}" for call in ("push", "wait", "copy_from") for server in range(3))
    )
    expect(sorted(log[-3:]), "the last three calls, of which each waits").equals(["wait 0", "wait 1", "wait 2"])
    for server in range(3):
        hint = "the buffers must hold the gradients when the message begins"
        early = log.index(f"copy_from {server}") < log.index(f"push {server}")
        expect(early, f"server {server}: copy_from before the message", look_at=hint).holds(", ".join(log))


@check(
    points=3,
    todo=6,
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
    answers = sorted(run.trace.of(0, Kind.SEND), key=lambda event: (event.start, event.sequence))
    order = [event.peer - 1 for event in answers[-3:] if event.peer]
    hint = "worker 2 asked first, then worker 1, then worker 0"
    expect(order, "workers in the order in which their last pulls were answered", look_at=hint).equals([2, 1, 0])


@check(
    points=1,
    todo=6,
    title="sync: workers count by their samples",
    look_at="`samples`, from push to the mean",
)
def weighted(submission: Submission, ranks: Ranks) -> None:
    run = run_of(submission, ranks(4), [[1], [3], [2]], times=6)
    expect(pulled(run)[1:], "weights after 1, 3 and 2 samples of workers 0, 1 and 2").equals(each([0.0, 231.0], 3))
    run = run_of(submission, ranks(4), [[2], [0], [1]], times=3)
    expect(pulled(run)[1:], "weights after 2, 0 and 1 samples of workers 0, 1 and 2").equals(each([0.0, 102.0], 3))


@check(
    points=2,
    todo=6,
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
    points=3,
    todo=6,
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
    todo=6,
    title="several servers: they divide the bytes, and one that dies is named",
    look_at="serve: receives are posted upon ANNOUNCE; Worker: all messages begin before the first `wait()`",
)
def several_servers(submission: Submission, ranks: Ranks) -> None:
    run = run_of(submission, ranks(5), [[1, 1]] * 2, num_servers=3, times=2, numel=7)
    expect(pulled(run)[3:], "weights of 7 elements on 3 servers, pulled by 2 workers").equals(
        each([0.0, 11.0, 22.0], 2)
    )
    if run.trace.clock != "modelled":
        return
    workers, servers, numel = 12, 4, 100_000
    slow_link = ranks(workers + servers, nproc_per_node=1, inter_node="ethernet-10g")
    run = run_of(submission, slow_link, [[1]] * workers, num_servers=servers, numel=numel)
    nbytes = 4 * numel * workers / servers
    hint = "gradients of several workers travel at once if their receives are posted: ANNOUNCE posts, PUSH waits"
    what = f"time of {workers} workers' two pulls and one push of 0.4 MB, on {servers} servers with 10 Gb/s each"
    expect(run.trace.seconds, what, unit="seconds", look_at=hint).at_most(1.35 * 3 * nbytes / 1.25e9)
    some = ranks(4, faults=[kill(1, at=0.015)])
    run = run_of(submission, some, [[1] * 3] * 2, num_servers=2, seconds=[0.01] * 2, attempt=True)
    hint = "`wait()` raises ServerStopped, which names the server: let it through"
    for rank in (2, 3):
        error = run.ranks[rank].error
        expect(error.type if error else "none", "error of a worker when a server dies", look_at=hint).equals(
            "ServerStopped"
        )


@check(
    points=2,
    todo=6,
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
        "A worker's gradient is a mean over its samples. What do you multiply it by to get the sum over its samples?",
        "For each total and its gradient, in the same order: add gradient x samples, in place, in the dtype of the "
        "total. Do nothing at all for 0 samples.",
        "`if samples:`, then `for total, gradient in zip(self.totals, gradients, strict=True): total.add_(gradient, "
        "alpha=samples)`, and `self.samples += samples`.",
    ],
    3: [
        "`add` has multiplied each gradient by its samples. By what do you divide the sum to get the mean over all "
        "samples? And what would the next step see if `totals` kept its values?",
        "An optimizer reads `parameter.grad`. It must have the parameter's dtype: `totals` may have a wider one. With "
        "momentum, or weight decay, even a gradient of 0 moves a weight: so without samples, no step.",
        "If `self.samples` and `self.optimizer is not None`: for each parameter and total, `parameter.grad = (total / "
        "self.samples).to(parameter.dtype)` and `total.zero_()`; then `self.optimizer.step()`. Last, in any case, "
        "`self.samples = 0`.",
    ],
    4: [
        "Write the five cases first, without steps and answers. Which of them may call `wait()`? Look at the drawing "
        "above the cell: what has the worker sent before each request?",
        "Forget the modes: which worker is the slowest, and what is its clock? A pull of clock c wants the "
        "result of clock c - 1. With sync, whose pushes must have come? With ssp and staleness 2, of which clock?",
        "After each request, whatever its kind, compute `slowest = min(self.clocks.values(), default=inf)`. With async "
        "and ssp, step after each push. With sync, step when the slowest has passed the clock that is to be completed. "
        "Then answer, in the order of `waiting`, each pull with `pull.clock - self.staleness <= slowest`: that is "
        "right for all three modes. Take it out of `waiting`.",
        "`match request.kind:` with `case Kind.ANNOUNCE: arriving[request.worker] = self.messages.receive(request)`; "
        "`case Kind.PUSH: self.add(arriving.pop(request.worker).wait(), request.samples)` and "
        "`self.clocks[request.worker] = request.clock + 1`; `case Kind.PULL: waiting.append(request)`; `case "
        'Kind.FINISH | Kind.DIED: del self.clocks[request.worker]`. Then `if self.mode != "sync" or slowest > '
        "complete: self.step()` and `complete = slowest`. Then the answers.",
    ],
    5: [
        "If you wait for the first server before you ask the second one, the second one is idle meanwhile. What has to "
        "happen in a first loop, and what in a second one?",
        "`self.messages.pull(...)` only begins: the values are in `shard.buffers` after `wait()`, and `copy_to` "
        "belongs after that. Keep what each call returns in a list.",
        "`works = [self.messages.pull(server, self.clock, shard.buffers) for server, shard in "
        "enumerate(self.shards)]`, then `for work, shard in zip(works, self.shards, strict=True): work.wait()` and "
        "`shard.copy_to(self.parameters)`.",
    ],
    6: [
        "The same two loops as in `pull`. Where does the copy belong this time?",
        "`copy_from` fills `shard.buffers`, which the message sends: it belongs before the message. All servers' "
        "messages begin in the first loop; the second one only waits.",
        "For each server and shard: `shard.copy_from([parameter.grad for parameter in self.parameters])`, and append "
        "`self.messages.push(server, self.clock, samples, shard.buffers)` to a list. Then `wait()` for each of the "
        "list.",
    ],
}
