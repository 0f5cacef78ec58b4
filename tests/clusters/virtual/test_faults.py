"""Injected faults: who dies, who is notified, what is slow, and that a run with faults is reproducible."""

import pytest
from waiting import BROKEN_SECONDS

from labkit.clusters import InvalidJob, Job
from labkit.clusters.virtual import jitter, kill, link, slow, virtual
from labkit.clusters.virtual.scheduler.faults import parse
from labkit.hardware import Link
from labkit.trace import Kind

START = "import torch, torch.distributed as dist, time\ndist.init_process_group()\nrank = dist.get_rank()\n"
LINK = Link("test", gb_per_s=1.0, latency_seconds=1e-3, source="test")


def run(source, *faults, n=2, ranks="threads", **options):
    cluster = virtual(nproc_per_node=n, intra_node=LINK, inter_node=LINK, faults=faults, ranks=ranks, **options)
    return cluster.run(Job(source=START + source, timeout=BROKEN_SECONDS))


SLEEPER = """
time.sleep(1.0)
print(f"{rank} awake")
dist.barrier()
print(f"{rank} through")
"""


@pytest.mark.parametrize("ranks", ["threads", "processes"])
def test_a_killed_rank_is_gone_and_who_waits_for_it_is_told(ranks):
    result = run(SLEEPER, kill(1, at=0.5), n=3, ranks=ranks)
    assert [rank.exit for rank in result.ranks] == [1, -9, 1]
    assert result.ranks[1].output == "" and result.ranks[0].output == "0 awake\n"
    for rank in (0, 2):
        error = result.ranks[rank].error
        assert error is not None and error.type == "PeerFailed" and "rank 1, which failed" in error.message
        assert error.time == pytest.approx(1.0, abs=1e-3)


def test_a_rank_is_killed_while_it_waits_and_nothing_of_it_runs_afterwards():
    source = """
if rank == 0:
    time.sleep(2.0)
    dist.send(torch.ones(1), 1)
else:
    try:
        dist.recv(torch.ones(1), 0)
    except Exception:
        print("caught")
    print("went on")
"""
    result = run(source, kill(1, at=0.5))
    assert result.ranks[1].exit == -9 and result.ranks[1].output == ""
    error = result.ranks[0].error
    assert error is not None and error.type == "PeerFailed" and error.time == pytest.approx(2.0, abs=1e-2)


def test_survivors_that_catch_the_error_go_on_without_the_dead():
    source = """
try:
    while True:
        time.sleep(0.1)
        dist.all_reduce(torch.ones(1))
except RuntimeError as error:
    rest = dist.new_group([0, 2], use_local_synchronization=True)
    total = torch.ones(1)
    dist.all_reduce(total, group=rest)
total.item()
"""
    result = run(source, kill(1, at=0.55), n=3)
    assert [rank.value for rank in result.ranks] == [2.0, None, 2.0]


def test_a_message_to_the_dead_fails_and_one_that_was_on_its_way_arrives():
    source = """
x = torch.full((1,), 7.0)
if rank == 0:
    request = dist.isend(x, 1)
    time.sleep(1.0)
else:
    time.sleep(1.0)
    dist.recv(x, 0)
    arrived = x.item()
    try:
        dist.recv(x, 0)
    except RuntimeError as error:
        arrived = (arrived, type(error).__name__)
arrived if rank == 1 else None
"""
    assert run(source, kill(0, at=0.5)).ranks[1].value == (7.0, "PeerFailed")


def test_a_degraded_link_takes_its_factor_longer_and_only_while_it_is():
    source = """
x = torch.empty(2_500_000)
for _ in range(3):
    dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
"""
    took = [event.end - event.start for event in run(source, link(rank=0, factor=0.5)).trace.of(1, Kind.RECEIVE)]
    assert took == pytest.approx([0.021, 0.02, 0.02], abs=1.1e-3)
    took = [e.end - e.start for e in run(source, link(rank=0, factor=0.5, until=0.001)).trace.of(0, Kind.SEND)]
    assert took == pytest.approx([0.0105, 0.011, 0.011], abs=1e-4), "a millisecond of the first one at half the rate"


def test_a_cut_link_fails_messages_and_collectives_on_both_sides_and_names_itself():
    source = """
seen = []
for act in (lambda: dist.send(torch.ones(1), 1) if rank == 0 else dist.recv(torch.ones(1), 0), dist.barrier):
    try:
        act()
    except RuntimeError as error:
        seen.append((type(error).__name__, str(error)))
seen
"""
    for rank in run(source, link(node=1), n=1, nnodes=2).ranks:
        assert [name for name, _ in rank.value] == ["LinkDown", "LinkDown"]
        assert all("network card 0 of node 1" in message for _, message in rank.value)
        assert "line 6" in rank.value[0][1]


def test_a_rank_that_dies_in_a_collective_fails_it_for_all():
    source = """
if rank == 0:
    time.sleep(1.0)
dist.all_reduce(torch.ones(1))
"""
    result = run(source, kill(2, at=0.5), n=3)
    errors = [rank.error and (rank.error.type, round(rank.error.time, 2)) for rank in result.ranks]
    assert errors == [("PeerFailed", 1.0), ("PeerFailed", 0.5), None]


def test_a_wait_with_a_time_limit_ends_at_it_and_closes_its_group_as_gloo_does():
    source = """
from datetime import timedelta
x = torch.zeros(1)
if rank == 0:
    try:
        dist.irecv(x, 1).wait(timedelta(seconds=2))
    except RuntimeError as error:
        told = str(error), time.time()
    try:
        dist.recv(x, 1)
    except RuntimeError as error:
        later = str(error)
else:
    told = "", time.time()
    time.sleep(5)
    try:
        dist.send(torch.ones(1), 0)
    except RuntimeError as error:
        later = str(error)
(*told, later)
"""
    (message, late, closed), (_, began, by_peer) = (rank.value for rank in run(source).ranks)
    assert " Timed out waiting 2000ms for recv operation to complete" in message
    assert late - began == pytest.approx(2, abs=0.01)
    assert closed.startswith("Application timeout caused pair closure")
    assert by_peer.startswith("Connection closed by peer: rank 0")


def test_a_slow_rank_computes_longer_by_its_factor():
    source = "x = torch.empty(512, 512)\nfor _ in range(4):\n    x = x @ x\ndist.barrier()"
    plain, slowed = run(source).trace, run(source, slow(1, factor=3.0)).trace

    def computing(trace, rank):
        return sum(event.end - event.start for event in trace.of(rank, Kind.COMPUTE))

    if not computing(plain, 0):
        pytest.fail("computing takes no time")
    assert computing(slowed, 0) == pytest.approx(computing(plain, 0))
    assert computing(slowed, 1) == pytest.approx(3 * computing(plain, 1))


def test_jitter_varies_with_its_seed_and_repeats_with_it():
    source = "x = torch.ones(10)\nfor _ in range(5):\n    dist.send(x, 1) if rank == 0 else dist.recv(x, 0)"
    first, again, other = (run(source, jitter(seed)).trace for seed in (1, 1, 2))
    assert first.events == again.events
    assert first.seconds != other.seconds
    assert len({round(event.end - event.start, 9) for event in first.of(1, Kind.RECEIVE)}) == 5


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: virtual(faults=[kill(9, at=1)]), "there are ranks 0 to 1"),
        (lambda: virtual(faults=[link(node=1)]), "there are nodes 0 to 0"),
        (lambda: virtual(faults=["kill"]), "made by kill, slow, link and jitter"),
    ],
)
def test_a_fault_that_cannot_be_says_why(make, part):
    with pytest.raises(InvalidJob, match=part):
        make()


def test_faults_are_read_from_a_magics_text():
    assert parse("kill(3, at=0.5)") == kill(3, 0.5)
    assert parse(" link(node=1, factor=0.1) ") == link(node=1, factor=0.1)
    for wrong in ("kill", "kill(3)", "open('x')", "kill(rank=__import__('os'), at=1)", "slow(1, 0)"):
        with pytest.raises(ValueError):
            parse(wrong)


def test_a_fault_that_cannot_be_is_shown_as_it_was_written():
    with pytest.raises(InvalidJob, match=r"^fault link\(node=1, factor=0\.1\): there are nodes 0 to 0$"):
        virtual(faults=[link(node=1, factor=0.1)])
    with pytest.raises(ValueError, match=r"'slow\(1, x\)': its arguments must be numbers"):
        parse("slow(1, x)")


@pytest.mark.parametrize("ranks", ["threads", "processes"])
def test_a_rank_is_killed_in_what_it_computes_last(ranks):
    result = run(
        "dist.barrier()\nfor _ in range(100):\n    torch.ones(256, 256).mm(torch.ones(256, 256))",
        kill(1, 5e-4),
        ranks=ranks,
    )
    assert [rank.exit for rank in result.ranks] == [0, -9] and result.ranks[1].output == ""


@pytest.mark.parametrize("ranks", ["threads", "processes"])
def test_a_killed_rank_is_told_from_one_that_died_by_itself(ranks):
    note = "rank 1 was to be killed at 0.5 virtual seconds: a fault of this cluster"
    assert run(SLEEPER, kill(1, at=0.5), ranks=ranks).notes == (note,)
    assert run("pass", kill(1, at=0.5), ranks=ranks).notes == ()
