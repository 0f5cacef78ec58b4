"""Two hundred random programs: none hangs, and each ends as a sequential reference predicts."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from random_programs import Program, generate, source
from sequential_reference import Place, outcome

from labkit import Job, Run, virtual
from labkit.trace import Event, Kind

TIMEOUT = 30.0
"""Limit in seconds of real time, which catches a scheduler that hangs."""


def run(program: Program, ranks: str = "threads", stubborn: bool = False) -> tuple[Run, dict[int, Place]]:
    text, lines = source(program, stubborn)
    cluster = virtual(nnodes=program.n, nproc_per_node=1, ranks=ranks)  # type: ignore[arg-type]
    return cluster.run(Job(source=text, filename="program", timeout=TIMEOUT)), lines


def messages(result: Run, lines: dict[int, Place]) -> list[tuple[Place, Place]]:
    """Return sends and receives of the trace in pairs. Each message must have one of each, and they must agree."""
    ends: dict[int, list[Event]] = defaultdict(list)
    for event in result.trace.events:
        if event.kind in (Kind.SEND, Kind.RECEIVE):
            ends[event.sequence].append(event)
    pairs = []
    for number, events in ends.items():
        assert sorted(e.kind for e in events) == [Kind.RECEIVE, Kind.SEND], f"message {number}: {events}"
        send, receive = sorted(events, key=lambda e: e.kind, reverse=True)
        assert (send.rank, send.nbytes, send.group) == (receive.peer, receive.nbytes, receive.group)
        assert send.peer == receive.rank
        assert max(send.start, receive.start) <= send.end <= receive.end
        pairs.append((place_of(send, lines), place_of(receive, lines)))
    return pairs


def place_of(event: Event, lines: dict[int, Place]) -> Place:
    return lines[int(event.line.rsplit(" ", 1)[1])]


def printed(result: Run, rank: int) -> list[tuple[int, float, str]]:
    """Return (place, clock, values) for each call that the rank completed."""
    rows = [line.split("|") for line in result.ranks[rank].output.splitlines()]
    return [(int(row[0]), float(row[1]), "|".join(row[2:])) for row in rows]


def check(program: Program, result: Run, lines: dict[int, Place]) -> set[str]:
    """Compare one run with the reference; return the kinds of errors that occurred."""
    assert not result.stopped, f"it hangs: {result.diagnosis()}"
    pairs = messages(result, lines)
    anybody = {receive: send[0] for send, receive in pairs}
    happened = {place_of(event, lines) for event in result.trace.events if event.kind is not Kind.COMPUTE}
    expected, impossible = outcome(program, anybody, happened)
    told = {rank.rank: rank.error.type for rank in result.ranks if rank.error is not None}
    assert told.keys() == expected.errors.keys(), (told, expected.errors)
    assert all(told[rank] in expected.errors[rank] for rank in told), (told, expected.errors)
    assert set(pairs) == expected.messages
    assert impossible == []
    for rank in range(program.n):
        rows = printed(result, rank)
        assert [place for place, _, _ in rows] == expected.passed[rank], f"rank {rank} came elsewhere"
        clocks = [clock for _, clock, _ in rows]
        assert clocks == sorted(clocks), f"the clock of rank {rank} ran back"
        for place, _, seen in rows:
            if (rank, place) in expected.seen and seen != "[]":
                values = expected.seen[rank, place]
                assert seen == str(values[0] if len(set(values)) == 1 else values), (rank, place)
    return set(told.values())


@pytest.mark.parametrize("seeds", [range(at, at + 25) for at in range(0, 200, 25)], ids=lambda s: f"{s[0]}-{s[-1]}")
def test_programs_end_as_the_reference_says(seeds: range) -> None:
    for seed in seeds:
        program = generate(seed)
        result, lines = run(program)
        try:
            check(program, result, lines)
            if seed % 4 == 0:
                again, _ = run(program)
                assert again.trace.to_json() == result.trace.to_json(), "another trace"
                assert again.diagnosis() == result.diagnosis()
        except AssertionError as error:
            error.add_note(f"seed {seed}, {program.n} ranks:\n{source(program)[0]}\n{result.diagnosis()}")
            raise


def test_ranks_in_processes_do_the_same() -> None:
    for seed in range(0, 200, 20):
        program = generate(seed)
        threads, _ = run(program)
        processes, lines = run(program, "processes")
        assert processes.trace.events == threads.trace.events, f"seed {seed}"
        assert processes.diagnosis() == threads.diagnosis(), f"seed {seed}"
        check(program, processes, lines)


def test_the_programs_are_of_all_kinds() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(200):
        expected, _ = outcome(generate(seed), {}, set())
        kinds.update({e for told in expected.errors.values() for e in told} or {"clean"})
    assert all(kinds[kind] > 10 for kind in ("clean", "DeadlockError", "MismatchError", "PeerFailed")), kinds


def test_ranks_that_go_on_after_every_error_do_not_hang_either() -> None:
    for seed in range(200, 230):
        program = generate(seed)
        result, lines = run(program, stubborn=True)
        assert not result.stopped, f"seed {seed}: {source(program, stubborn=True)[0]}"
        messages(result, lines)
        assert run(program, stubborn=True)[0].trace.to_json() == result.trace.to_json(), f"seed {seed}"


MIXED = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
odd = dist.new_group(range(1, n, 2))
for step in range(2):
    model(torch.full((4, 64), rank + step + 1.0)).sum().backward()
    x = torch.full((256,), float(rank))
    if rank == 0:
        sources = [dist.recv(x) for _ in range(n - 1)]
    else:
        torch.ones(8 * rank, 64) @ torch.ones(64, 8)
        dist.send(x, 0)
    works = [dist.isend(x, (rank + 1) % n), dist.irecv(torch.empty(256), (rank - 1) % n)]
    while not all(work.is_completed() for work in works):
        pass
    if rank % 2:
        dist.all_reduce(x, group=odd)
sources if rank == 0 else x[0].item()
"""


def test_twenty_runs_give_one_trace() -> None:
    runs = [virtual(nnodes=2, nproc_per_node=4).run(Job(source=MIXED)).raise_if_failed() for _ in range(20)]
    assert all(r.values == runs[0].values for r in runs)
    first = runs[0].trace.to_json()
    assert all(r.trace.to_json() == first for r in runs[1:])
