"""Hidden rubric of parameter_server: 25 points, 12 for values and 13 for who waits for whom, messages and failures.

Steps take a time that the judge charges, so when a worker begins a step is known: that shows the staleness, and who
waits without need. With one server the judge knows from its messages in which order pushes came and pulls were
answered: it replays them, and expects the weights that each worker must have pulled. In some runs a message is altered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Alteration, Args, Draw, ProcessRun, Ranks, RankSet, Submission, check, expect, work
from labkit.clusters import Run
from labkit.clusters.virtual import jitter, kill, slow
from labkit.course.phase3_multi_node.parameter_server.scenarios import pieces_of, played
from labkit.trace import Category, Event, Kind

LINK = "ethernet-10g"
BYTES_PER_SECOND = 1.25e9
"""Of a port on that link, in each direction."""
PAYLOADS = "0"
"""Name of the default group, in which gradients and values travel; requests have a group of their own."""
CLOSE = 1e-4
"""Tolerance for float32 and a few steps of an optimizer; sums over workers may come in any order."""
SLACK = 0.003
"""Seconds for the messages of a pull and a push, which take 0.2 ms, when all workers make them at once."""
SHAPES = ((5, 3), (7,), (), (2, 2, 3))
FORBIDDEN = {
    "torch.distributed.all_reduce",
    "torch.distributed.all_gather",
    "torch.distributed.broadcast",
    "torch.distributed.barrier",
    "torch.distributed.rpc",
    "torch.nn.parallel.DistributedDataParallel",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""

Weights = list[Tensor]


OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 1.0}),
    "heavy": ("SGD", {"lr": 0.25, "momentum": 0.5}),
    "momentum": ("SGD", {"lr": 0.25, "momentum": 0.5, "weight_decay": 0.125}),
    "adam": ("Adam", {"lr": 0.05, "eps": 0.01}),
}
"""Adam's step is not linear in the gradient; momentum depends on all steps before."""


def optimizer_of(name: str, weights: Sequence[Tensor]) -> torch.optim.Optimizer:
    kind, arguments = OPTIMIZERS[name]
    made: torch.optim.Optimizer = getattr(torch.optim, kind)(weights, **arguments)
    return made


# A game: what workers push, and what comes out ------------------------------------------------------------------------


class Game:
    """Initial weights and what each worker does; `play` lets ranks do it."""

    def __init__(
        self,
        draw: Draw,
        samples: Sequence[Sequence[int]],
        mode: str = "sync",
        staleness: int | None = None,
        *,
        num_servers: int = 1,
        optimizer: str = "sgd",
        towards: bool = False,
        seconds: Sequence[float] | None = None,
        shapes: Sequence[tuple[int, ...]] = SHAPES,
        dtypes: Sequence[torch.dtype] = (torch.float32,),
    ) -> None:
        """samples: of each step of each worker. seconds: of a step, for each worker."""
        self.samples, self.mode, self.staleness = [list(counts) for counts in samples], mode, staleness
        self.num_servers, self.optimizer, self.towards = num_servers, optimizer, towards
        self.seconds = list(seconds or [0.01] * len(samples))
        kinds = [dtypes[index % len(dtypes)] for index in range(len(shapes))]

        def weights() -> Weights:
            return [draw.tensor(shape, dtype) for shape, dtype in zip(shapes, kinds, strict=True)]

        self.initial = weights()
        self.steps: list[list[list[Any]]] = [[[*weights()] for _ in counts] for counts in self.samples]

    @property
    def world_size(self) -> int:
        return self.num_servers + len(self.samples)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.initial)

    def odd_gradients(self, draw: Draw) -> None:
        """Let gradients of 0 samples be NaN, as the mean over no samples is; others lack a parameter, but the first."""
        for counts, steps in zip(self.samples, self.steps, strict=True):
            for clock, (count, tensors) in enumerate(zip(counts, steps, strict=True)):
                if count == 0:
                    tensors[:] = [torch.full(initial.shape, float("nan")) for initial in self.initial]
                elif clock:
                    tensors[draw.randrange(len(tensors))] = None

    def play(self, submission: Submission, some: RankSet, attempt: bool = False) -> Run:
        """Let ranks play; none may use a collective. attempt: ranks may fail."""
        more = (self.num_servers, self.mode, self.staleness, OPTIMIZERS[self.optimizer], self.towards)
        given = [Args(self.initial, [], [], *more, None) for _ in range(self.num_servers)]
        for tensors, counts, seconds in zip(self.steps, self.samples, self.seconds, strict=True):
            given.append(Args(self.initial, tensors, counts, *more, work("step", seconds)))
        call = some.attempt if attempt else some.call
        run = call(submission.used_by(played), given)
        called = sorted({event.operation for event in run.trace.collectives()})
        expect(called, "library collectives called", look_at="`self.messages` sends and receives all").equals([])
        servers = set(range(self.num_servers))
        for rank in range(self.num_servers, self.world_size):
            others = sorted(run.trace.sends_to(rank) - servers)
            expect(others, "workers that a worker sends to", look_at="workers talk to servers only").equals([])
        return run

    def pulled(self, run: Run, members: Sequence[int] | None = None) -> list[list[Weights]]:
        """Return what each worker says that it has pulled; expect as many weights as it must pull."""
        chosen = range(len(self.samples)) if members is None else members
        found = [run.values[self.num_servers + worker] or [] for worker in chosen]
        wanted = [len(self.samples[worker]) + 1 for worker in chosen]
        expect([len(one) for one in found], "pulls of each worker, one at its end").equals(wanted)
        return found

    def one_process(self) -> list[Weights]:
        """Return the weights of one process before each step and at the end: it has all samples of a step."""
        weights = [values.clone().requires_grad_() for values in self.initial]
        optimizer = optimizer_of(self.optimizer, weights)
        found = []
        for clock in range(len(self.samples[0]) + 1):
            found.append([weight.detach().clone() for weight in weights])
            if clock == len(self.samples[0]):
                return found
            total = sum(counts[clock] for counts in self.samples)
            for index, weight in enumerate(weights):
                wide = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
                parts = [wide - steps[clock][index] if self.towards else steps[clock][index] for steps in self.steps]
                mean = sum(c[clock] * part.to(wide.dtype) for c, part in zip(self.samples, parts, strict=True)) / total
                weight.grad = torch.as_tensor(mean).to(weight.dtype)
            optimizer.step()
        return found

    def gradient(self, worker: int, clock: int) -> Tensor:
        """Return what a worker pushes, flat: zeros where there is no gradient."""
        tensors = zip(self.initial, self.steps[worker][clock], strict=True)
        return torch.cat([(torch.zeros_like(i) if t is None else t).reshape(-1) for i, t in tensors])

    def replayed(self, run: Run, altered: int | None = None) -> list[list[Tensor]]:
        """Return what each worker must have pulled, flat, from the order of messages at the one server.

        altered: the rank whose first payload arrived with 1 added.
        """
        weights = torch.cat([values.reshape(-1) for values in self.initial]).requires_grad_()
        optimizer = optimizer_of(self.optimizer, [weights])
        pushes, rounds = [0] * len(self.samples), dict[int, list[tuple[int, Tensor]]]()
        found: list[list[Tensor]] = [[] for _ in self.samples]
        for rank, pushed in handled(run, 0):
            worker, plus = rank - 1, 0
            if altered == (rank if pushed else 0):
                plus, altered = 1, None
            if not pushed:
                found[worker].append(weights.detach() + plus)
                continue
            clock = pushes[worker]
            pushes[worker] += 1
            gradient = self.gradient(worker, clock) + plus
            key = clock if self.mode == "sync" else -1
            rounds.setdefault(key, []).append((self.samples[worker][clock], gradient))
            if self.mode != "sync" or len(rounds[key]) == sum(len(counts) > clock for counts in self.samples):
                parts = rounds.pop(key)
                if total := sum(count for count, _ in parts):
                    weights.grad = torch.as_tensor(sum(count * part for count, part in parts if count)) / total
                    optimizer.step()
        return found

    def expect_replayed(
        self, run: Run, what: str, altered: int | None = None, members: Sequence[int] | None = None
    ) -> None:
        """Expect that these workers pulled what the order of messages at the one server says."""
        wanted = self.replayed(run, altered)
        chosen = range(len(self.samples)) if members is None else members
        for worker, seen in zip(chosen, self.pulled(run, members), strict=True):
            flat = [torch.cat([tensor.reshape(-1) for tensor in weights]) for weights in seen]
            expect(len(wanted[worker]), f"answers to worker {worker}").equals(len(flat))
            for values, right in zip(flat, wanted[worker], strict=True):
                expect([values], f"weights that worker {worker} pulled, {what}").close_to([right], rel=CLOSE)


def payloads(run: Run, rank: int) -> list[Event]:
    """Return a rank's payloads in order: when it sent them, or when they had arrived."""
    found = [e for e in run.trace.of(rank) if e.kind in (Kind.SEND, Kind.RECEIVE) and e.group == PAYLOADS]
    return sorted(found, key=lambda event: event.start if event.kind is Kind.SEND else event.end)


def requests(run: Run, rank: int, kind: Kind = Kind.SEND) -> list[Event]:
    """Return the requests that a rank has sent, or received, in order."""
    found = [event for event in run.trace.of(rank, kind) if event.group != PAYLOADS]
    return sorted(found, key=lambda event: event.start)


def handled(run: Run, server: int) -> list[tuple[int, bool]]:
    """Return what a server did, in order: a worker's rank, and whether its push came or its pull was answered.

    A worker's requests are pull, announcement and push, again and again; the last ones are pull and end.
    """
    received, found = Counter[int](), []
    for event in requests(run, server, Kind.RECEIVE):
        if event.peer is not None:
            received[event.peer] += 1
            if received[event.peer] % 3 == 0:
                found.append((event.end, event.sequence, event.peer, True))
    for event in answers(run, server):
        if event.peer is not None:
            found.append((event.start, event.sequence, event.peer, False))
    return [(rank, pushed) for _, _, rank, pushed in sorted(found)]


def answers(run: Run, server: int) -> list[Event]:
    """Return the answers that a server has begun to send, in order."""
    found = [event for event in payloads(run, server) if event.kind is Kind.SEND]
    return sorted(found, key=lambda event: (event.start, event.sequence))


def steps_of(run: Run, rank: int) -> list[Event]:
    """Return a worker's steps, in order."""
    found = [event for event in run.trace.of(rank, Kind.COMPUTE) if event.operation == "step"]
    return sorted(found, key=lambda event: event.start)


def finished(game: Game, run: Run, clock: int) -> float:
    """Return when the last worker that makes a step `clock` finished it; 0 for a clock below 0, infinity if none."""
    if clock < 0:
        return 0.0
    ranks = range(game.num_servers, game.world_size)
    return max((s[clock].end for s in (steps_of(run, rank) for rank in ranks) if len(s) > clock), default=inf)


# Values ---------------------------------------------------------------------------------------------------------------

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def divided(
    submission: Submission, ranks: Ranks, sizes: list[int], dtypes: list[str], num_servers: int
) -> list[list[list[int]]]:
    """Return the pieces of each server; expect each element once."""
    (shards,) = ranks(1).call(submission.used_by(pieces_of), [Args(sizes, dtypes, num_servers)]).values
    expect(len(shards), "number of shards").equals(num_servers)
    elements = [(index, place) for shard in shards for index, start, stop in shard for place in range(start, stop)]
    wanted = [(index, place) for index, size in enumerate(sizes) for place in range(size)]
    expect(elements == wanted, "each element is in one piece, in order").holds("they are not")
    found: list[list[list[int]]] = shards
    return found


@check(
    points=2, todo=1, title="every server gets the same bytes", look_at="partition: an element's bytes, and the rest"
)
def balanced(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    mixed = [draw.randrange(100, 200), draw.randrange(300, 400), draw.randrange(100, 200)]
    cases = [(mixed, ["float64", "bfloat16", "float32"], draw.randrange(2, 5))]
    for _ in range(3):
        sizes = [draw.choice([0, 1, 3, draw.randrange(5, 400)]) for _ in range(draw.randrange(3, 10))]
        cases.append(([*sizes, 100], [draw.choice(list(BYTES)) for _ in range(len(sizes) + 1)], draw.randrange(2, 7)))
    for sizes, dtypes, servers in cases:
        shards = divided(submission, ranks, sizes, dtypes, servers)
        share = sum(size * BYTES[dtype] for size, dtype in zip(sizes, dtypes, strict=True)) / servers
        for shard in shards:
            nbytes = sum((stop - start) * BYTES[dtypes[index]] for index, start, stop in shard)
            expect(abs(nbytes - share), "difference of a server's bytes to its share", unit="bytes").at_most(16)


@check(
    points=1, todo=1, title="tensors are cut only where it must be", look_at="partition: when the next server begins"
)
def cut(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    servers = draw.randrange(2, 6)
    for sizes in ([draw.randrange(500, 900), 3, 5, 1], [draw.randrange(3, 40) for _ in range(9)], [1]):
        shards = divided(submission, ranks, sizes, ["float32"] * len(sizes), servers)
        pieces = [piece for shard in shards for piece in shard]
        expect(min(stop - start for _, start, stop in pieces), "elements of the shortest piece").at_least(1)
        expect(len(pieces), "number of pieces").at_most(len(sizes) + servers - 1)


@check(
    points=3,
    todo=6,
    title="sync: the steps of one process on the whole batch",
    look_at="the mean over all samples, and one optimizer step for each clock",
)
def sync(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for servers, workers, optimizer in ((1, 3, "adam"), (draw.choice([2, 3]), 2, "momentum"), (2, 4, "adam")):
        samples = [[draw.randrange(1, 9) for _ in range(3)] for _ in range(workers)]
        game = Game(draw, samples, num_servers=servers, optimizer=optimizer, towards=True)
        run = game.play(submission, ranks(game.world_size))
        wanted = game.one_process()
        for seen in game.pulled(run):
            for weights, right in zip(seen, wanted, strict=True):
                expect(weights, "weights that a worker pulled, after some clocks").close_to(right, rel=CLOSE)


@check(
    points=2,
    todo=6,
    title="dtypes: kept in messages, and sums with enough digits",
    look_at="what gradients and values are converted to, and when",
)
def dtypes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for kinds in ([torch.float64], [torch.bfloat16], [torch.float32, torch.bfloat16, torch.float64]):
        game = Game(draw, [[1, 1]] * 2, num_servers=2, dtypes=kinds)
        run = game.play(submission, ranks(4))
        wanted = game.one_process()
        for seen in game.pulled(run):
            for weights, right in zip(seen, wanted, strict=True):
                expect(weights, "weights that a worker pulled").equals(right)
        for rank in (2, 3):
            sent = sum(event.nbytes for event in payloads(run, rank) if event.kind is Kind.SEND)
            expect(sent, "bytes of gradients that a worker sent in 2 steps", unit="bytes").equals(2 * game.nbytes)
    # 256 + 1 + 1 + 1 + 1 in bfloat16 is 256, whenever the 256 comes first
    game = Game(draw, [[1]] * 5, dtypes=[torch.bfloat16], shapes=[(5,)])
    game.steps = [[[torch.ones(5).index_fill(0, torch.tensor(w), 256).bfloat16()]] for w in range(5)]
    game.initial = [torch.zeros(5, dtype=torch.bfloat16)]
    run = game.play(submission, ranks(6))
    for seen in game.pulled(run):
        expect(seen[-1], "minus the mean of 256, 1, 1, 1 and 1").equals([torch.full((5,), -52.0).bfloat16()])


@check(
    points=2,
    todo=6,
    title="async, ssp: each push is one step, in the order of arrival",
    look_at="where the optimizer is, and when it takes a step",
)
def each_push(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for mode, staleness, optimizer in (("async", None, "adam"), ("ssp", 1, "momentum"), ("async", None, "sgd")):
        workers = draw.choice([2, 3])
        seconds = [draw.randrange(8, 30) / 1000 for _ in range(workers)]
        game = Game(draw, [[draw.randrange(1, 5)] * 4] * workers, mode, staleness, optimizer=optimizer, seconds=seconds)
        altered = draw.choice([0, 1 + draw.randrange(workers)])
        run = game.play(submission, ranks(game.world_size, alteration=Alteration(altered)))
        game.expect_replayed(run, f"{mode}, by the order of messages at the server", altered)


@check(
    points=1,
    todo=6,
    title="workers that make fewer steps, and pushes of no samples",
    look_at="a worker that has finished counts no more",
)
def uneven(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for mode, staleness in (("sync", None), ("async", None), ("ssp", draw.choice([0, 1]))):
        samples = draw.sample([[2, 0, 3], [1, 0], [4, 2, 0, 0, 1], [3, 0]], 3)
        game = Game(draw, samples, mode, staleness, optimizer="momentum")
        game.odd_gradients(draw)
        altered = 1 + draw.randrange(3)
        run = game.play(submission, ranks(4, alteration=Alteration(altered)))
        game.expect_replayed(run, f"{mode}, with {', '.join(str(len(s)) for s in samples)} steps", altered)


# Who waits for whom ---------------------------------------------------------------------------------------------------


def with_stragglers(draw: Draw, mode: str, staleness: int | None, servers: int) -> tuple[Game, dict[str, Any]]:
    """Return a game and faults: one worker is several times as slow as the others, and all times vary."""
    workers = draw.choice([3, 4])
    game = Game(draw, [[1] * 7] * workers, mode, staleness, num_servers=servers)
    straggler = servers + draw.randrange(workers)
    faults = [slow(straggler, draw.choice([2.5, 3.0])), jitter(draw.randrange(1000), compute=0.2)]
    return game, {"faults": faults}


@check(
    points=2,
    todo=6,
    title="ssp: no worker is more than `staleness` clocks ahead",
    look_at="serve: which clock the slowest worker must have reached",
)
def bound(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for mode, staleness, servers in (("ssp", 1, 1), ("ssp", draw.choice([2, 3]), 2), ("ssp", 0, 1), ("sync", None, 2)):
        game, faults = with_stragglers(draw, mode, staleness, servers)
        run = game.play(submission, ranks(game.world_size, **faults))
        if servers == 1:
            game.expect_replayed(run, "by the order of messages at the server")
        behind = staleness or 0
        for rank in range(servers, game.world_size):
            for clock, step in enumerate(steps_of(run, rank)):
                what = f"time at which a worker began clock {clock}, when all had finished clock {clock - behind - 1}"
                expect(step.start, what, unit="seconds").at_least(finished(game, run, clock - behind - 1))


@check(
    points=2,
    todo=6,
    title="no worker waits without need",
    look_at="serve: a pull is answered as soon as its mode allows it",
)
def prompt(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for mode, staleness, servers in (("ssp", 1, 2), ("ssp", draw.choice([2, 3]), 1), ("async", None, 1)):
        game, faults = with_stragglers(draw, mode, staleness, servers)
        run = game.play(submission, ranks(game.world_size, **faults))
        if servers == 1:
            game.expect_replayed(run, "by the order of messages at the server")
        for rank in range(servers, game.world_size):
            own = steps_of(run, rank)
            for clock in range(1, len(own)):
                needed = 0.0 if staleness is None else finished(game, run, clock - staleness - 1)
                since = max(own[clock - 1].end, needed)
                what = f"time that a worker waited before clock {clock}, beyond what {mode} needs"
                expect(own[clock].start - since, what, unit="seconds").at_most(SLACK)


@check(
    points=1,
    todo=6,
    title="first come, first served",
    look_at="serve: in which order pulls that have waited are answered",
)
def fair(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for mode, staleness in (("sync", None), ("ssp", 1), ("async", None)):
        workers = 5
        order = draw.sample(range(workers), workers)  # by speed: not the order of ranks
        if order == sorted(order):
            order.reverse()
        seconds = [0.01 + 0.002 * place for place in order]
        game = Game(draw, [[1] * 4] * workers, mode, staleness, seconds=seconds)
        run = game.play(submission, ranks(workers + 1))
        game.expect_replayed(run, "by the order of messages at the server")
        order_of_answers = [event.peer for event in answers(run, 0)]
        asked = {rank: requests(run, rank)[::3] for rank in range(1, workers + 1)}  # the others belong to pushes
        for clock in range(5):
            arrived = sorted(asked, key=lambda rank, clock=clock: asked[rank][clock].end)  # type: ignore[misc]
            turns = {rank: [i for i, peer in enumerate(order_of_answers) if peer == rank] for rank in asked}
            answered = sorted(asked, key=lambda rank, clock=clock: turns[rank][clock])  # type: ignore[misc]
            if mode != "ssp":  # with ssp a later pull may be of an earlier clock, which may be answered first
                what = f"workers in the order in which their pulls of clock {clock} were answered, {mode}"
                expect([r - 1 for r in answered], what).equals([r - 1 for r in arrived])


# Messages, memory, failures -------------------------------------------------------------------------------------------


@check(
    points=1,
    todo=6,
    title="one request for each pull, two for each push: no polling",
    look_at="what a worker sends while it waits, and what the servers send unasked",
)
def messages(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    steps, servers = 4, 2
    game = Game(draw, [[1] * steps] * 3, draw.choice(["sync", "ssp"]), None, num_servers=servers)
    game.staleness = 1 if game.mode == "ssp" else None
    run = game.play(submission, ranks(5, faults=[slow(4, 3.0)]))
    for rank in (2, 3, 4):
        seen = len(requests(run, rank))
        what = f"requests of a worker, to {servers} servers, for {steps} steps, a last pull and the end"
        expect(seen, what).equals(servers * (3 * steps + 2))
        sent = [event.nbytes for event in payloads(run, rank) if event.kind is Kind.SEND]
        got = [event.nbytes for event in payloads(run, rank) if event.kind is Kind.RECEIVE]
        expect([len(sent), len(got)], "payloads that a worker sent and received").equals(
            [steps * servers, (steps + 1) * servers]
        )
        expect([sum(sent), sum(got)], "their bytes").equals([steps * game.nbytes, (steps + 1) * game.nbytes])


@check(
    points=1,
    todo=6,
    title="all servers are asked at once",
    look_at="Worker: all messages begin before the first `wait()`",
)
def at_once(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    servers = draw.choice([3, 4])
    game = Game(draw, [[1] * 3] * 2, num_servers=servers, shapes=[(500, 100), (7,)])
    run = game.play(submission, ranks(game.world_size, nproc_per_node=1, inter_node=LINK))
    for rank in range(servers, game.world_size):
        asked, sent = requests(run, rank), payloads(run, rank)
        expect([len(asked), len(sent)], "requests and payloads of a worker").equals([11 * servers, 7 * servers])
        for turn in range(7):  # pull, push, pull, ..., pull
            begin = (turn // 2 * 3 + turn % 2) * servers  # a push has two requests to each server
            batch = asked[begin : begin + servers]
            first = min(event.end for event in sent[turn * servers : (turn + 1) * servers])
            what = f"time at which the last of {servers} servers was asked, before the first one had its payload"
            expect(batch[-1].start, what, unit="seconds").at_most(first)


@check(
    points=2,
    todo=6,
    title="servers divide the bytes of pulls and of pushes",
    look_at="serve: receives are posted upon ANNOUNCE, and awaited upon PUSH",
)
def divides(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    workers, servers = draw.choice([10, 12, 14]), draw.choice([4, 5])
    mode = draw.choice(["sync", "async"])
    game = Game(draw, [[1]] * workers, mode, num_servers=servers, shapes=[(200, 500), (draw.randrange(1, 9),)])
    run = game.play(submission, ranks(game.world_size, nproc_per_node=1, inter_node=LINK))
    game.pulled(run)
    ports = workers * game.nbytes / servers / BYTES_PER_SECOND
    step = max(game.seconds)
    came = [max(e.end for e in payloads(run, rank) if e.kind is Kind.RECEIVE) for rank in range(servers)]
    what = f"time until {workers} workers' pulls and pushes of {game.nbytes} bytes have come, {servers} servers"
    expect(max(came) - step, what, unit="seconds").at_most(1.3 * 2 * ports)


@check(
    points=1,
    todo=6,
    title="the optimizer's state is on the servers, each has its part",
    look_at="who makes the optimizer, and of which tensors",
)
def state(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    game = Game(draw, [[1] * 2] * 2, "async", num_servers=2, optimizer="heavy", shapes=[(300, 200), (40_000,)])
    run = game.play(submission, ranks(4, account=True))
    for rank in range(4):
        nbytes = run.trace.peak_by_category(rank).get(Category.OPTIMIZER, 0)
        if rank < 2:
            share = game.nbytes / 2
            expect(nbytes, f"bytes of optimizer state on server {rank}", unit="bytes").at_least(0.9 * share)
            expect(nbytes, f"bytes of optimizer state on server {rank}", unit="bytes").at_most(1.1 * share)
        else:
            expect(nbytes, f"bytes of optimizer state on worker {rank - 2}", unit="bytes").equals(0)


@check(
    points=2,
    todo=6,
    title="a worker that dies does not stop the others",
    look_at="serve: what a worker that leaves may allow, and whose samples the mean counts",
)
def death(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for mode, staleness in (("async", None), ("ssp", draw.choice([0, 1])), ("sync", None)):
        workers, dies = draw.choice([3, 4]), draw.randrange(3)
        game = Game(draw, [[draw.randrange(1, 5)] * 6] * workers, mode, staleness)
        run = game.play(submission, ranks(workers + 1, faults=[kill(1 + dies, at=0.0255)]), attempt=True)
        others = [worker for worker in range(workers) if worker != dies]
        for rank in (0, *(1 + worker for worker in others)):
            error = run.ranks[rank].error
            failed = "" if error is None else f"{error.type}: {error.message}"
            expect(failed, f"error of {'a worker' if rank else 'the server'} with {mode}").equals("")
        # it has pushed twice
        game.samples[dies] = game.samples[dies][:2]
        game.expect_replayed(run, f"{mode}, after a worker's death", members=others)


@check(
    points=1,
    todo=6,
    title="a server that dies is named",
    look_at="the errors of `wait()` must reach the caller of pull and push",
)
def named(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    dies, mode = draw.randrange(3), draw.choice(["sync", "async"])
    game = Game(draw, [[1] * 6] * 2, mode, num_servers=3)
    whole = game.play(submission, ranks(5))
    game.pulled(whole)
    game = Game(draw, [[1] * 6] * 2, mode, num_servers=3)
    run = game.play(submission, ranks(5, faults=[kill(dies, at=0.0255)]), attempt=True)
    for rank in (3, 4):
        error = run.ranks[rank].error
        expect(error.type if error else "none", "error of a worker when a server has died").equals("ServerStopped")
        expect(error.message if error else "", "its text").contains(f"server {dies}, rank {dies},")


@check(
    points=1,
    todo=6,
    title="real processes: the same steps, and no more bytes than gradients and values",
    look_at="what may be different with gloo",
    needs={"network"},
)
def real_processes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    shapes = [(draw.randrange(200, 300), 200), (draw.randrange(5000, 9000),)]
    game = Game(draw, [[1, 3], [2, 2]], optimizer="momentum", shapes=shapes, seconds=[0.0, 0.0])
    run = game.play(submission, ranks.processes(3))
    assert isinstance(run, ProcessRun)
    for seen in game.pulled(run):
        for weights, right in zip(seen, game.one_process(), strict=True):
            expect(weights, "weights that a worker pulled").close_to(right, rel=CLOSE)
    # 3 pulls and 2 pushes of each of two workers
    expect(run.bytes_on_the_wire, "bytes that all ranks sent, as the kernel counts them", unit="bytes").at_most(
        1.1 * 2 * 5 * game.nbytes
    )
