"""Virtual time comes from messages and links: programs with times known on paper."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

import pytest

from labkit import Job, Run, virtual
from labkit.clusters.virtual.scheduler.nccl_cost_model import choose
from labkit.hardware import LINKS, Link, topology
from labkit.trace import Kind

SLOW = Link("slow", gb_per_s=1.0, latency_seconds=1e-5, source="made up for round numbers")
FAST = Link("fast", gb_per_s=100.0, latency_seconds=1e-6, source="made up for round numbers")
MEGABYTE = 250_000  # float32 elements


def run(source: str, **options: object) -> Run:
    head = """
        import torch, torch.distributed as dist
        dist.init_process_group()
        rank, world_size = dist.get_rank(), dist.get_world_size()
    """
    # message times only
    return virtual(account=False, **options).run(Job(source=dedent(head) + dedent(source))).raise_if_failed()  # type: ignore[arg-type]


def test_seven_senders_share_the_receivers_port() -> None:
    result = run(
        f"""
        x = torch.ones({MEGABYTE})
        if rank == 0:
            works = [dist.irecv(torch.empty_like(x), source) for source in range(1, world_size)]
            for work in works:
                work.wait()
        else:
            dist.send(x, 0)
        """,
        nproc_per_node=8,
        intra_node=SLOW,
    )
    assert result.trace.seconds == pytest.approx(1e-5 + 7 * 1e-3)
    ends = [e.end for e in result.trace.of(0, Kind.RECEIVE)]
    assert ends == pytest.approx([1e-5 + 7e-3] * 7), "each has a seventh of the port"


def test_one_sender_occupies_its_port_for_each_message() -> None:
    result = run(
        f"""
        x = torch.ones({MEGABYTE})
        if rank == 0:
            works = [dist.isend(x, to) for to in range(1, world_size)]
            for work in works:
                work.wait()
        else:
            dist.recv(x, 0)
        """,
        nproc_per_node=5,
        intra_node=SLOW,
    )
    assert result.trace.seconds == pytest.approx(1e-5 + 4 * 1e-3)


def test_binary_tree_reduction_takes_a_round_for_each_level() -> None:
    result = run(
        f"""
        x = torch.ones({MEGABYTE})
        step = 1
        while step < world_size:
            if rank % (2 * step) == step:
                dist.send(x, rank - step)
                break
            if rank + step < world_size:
                other = torch.empty_like(x)
                dist.recv(other, rank + step)
                x += other
            step *= 2
        x[0].item()
        """,
        nproc_per_node=16,
        intra_node=SLOW,
    )
    assert result.values[0] == 16
    assert result.trace.seconds == pytest.approx(4 * (1e-5 + 1e-3))


def ring_source(group: str = "list(range(world_size))", numel: int = MEGABYTE) -> str:
    return f"""
        members = {group}
        if rank in members:
            me, n = members.index(rank), len(members)
            right, left = members[(me + 1) % n], members[(me - 1) % n]
            x = torch.full(({numel},), float(rank))
            chunks = list(x.chunk(n))
            for round in range(2 * (n - 1)):
                out, into = chunks[(me - round) % n], torch.empty_like(chunks[(me - round - 1) % n])
                work = dist.isend(out, right)
                dist.recv(into, left)
                work.wait()
                if round < n - 1:
                    chunks[(me - round - 1) % n] += into
                else:
                    chunks[(me - round - 1) % n].copy_(into)
            assert (x == sum(members)).all()
    """


@pytest.mark.parametrize("world_size", [2, 5, 8, 16])
def test_a_ring_takes_its_closed_form(world_size: int) -> None:
    numel = 1000 * world_size
    result = run(ring_source(numel=numel), nproc_per_node=world_size, intra_node=SLOW)
    assert result.trace.seconds == pytest.approx(2 * (world_size - 1) * (1e-5 + 4000 / 1e9))
    assert result.trace.bytes_sent(0) == 2 * (world_size - 1) * 4000


def test_two_rings_through_one_network_card_take_turns() -> None:
    alone = run(ring_source("[0, 2]"), nnodes=2, nproc_per_node=2, intra_node=FAST, inter_node=SLOW)
    both = run(ring_source("[rank % 2, rank % 2 + 2]"), nnodes=2, nproc_per_node=2, intra_node=FAST, inter_node=SLOW)
    own_cards = run(
        ring_source("[rank % 2, rank % 2 + 2]"),
        nnodes=2,
        nproc_per_node=2,
        nics_per_node=2,
        intra_node=FAST,
        inter_node=SLOW,
    )
    step = 1e-3 / 2
    assert alone.trace.seconds == pytest.approx(2 * (1e-5 + step), rel=0.02)
    assert both.trace.seconds == pytest.approx(2 * (1e-5 + 2 * step), rel=0.02)
    assert own_cards.trace.seconds == pytest.approx(alone.trace.seconds)


def test_a_message_between_nodes_does_not_hold_the_fast_ports() -> None:
    # rank 0 sends far and slowly, with a hundredth of its port's rate: the rest is left for rank 1's message
    result = run(
        f"""
        x = torch.ones({MEGABYTE})
        if rank == 0:
            works = [dist.isend(x, 2), dist.isend(x, 1)]
            for work in works:
                work.wait()
        elif rank == 1:
            dist.recv(torch.empty(1), 3)
            dist.recv(x, 0)
        elif rank == 2:
            dist.recv(x, 0)
        else:
            dist.send(torch.ones(1), 1)
        """,
        nnodes=2,
        nproc_per_node=2,
        intra_node=FAST,
        inter_node=SLOW,
    )
    _, near = result.trace.of(1, Kind.RECEIVE)
    (far,) = result.trace.of(2, Kind.RECEIVE)
    assert near.end == pytest.approx(1e-5 / 0.99 + 4e-9 + 1e-6 + 1e-5, rel=1e-4)
    assert far.end == pytest.approx(1e-5 + 1e-3, rel=0.02)
    slow, _ = sorted(result.trace.of(0, Kind.SEND), key=lambda e: e.end, reverse=True)
    assert slow.end == pytest.approx(1e-3, rel=0.02), "a message has left when it has left the network card"
    assert {e.sequence for e in (near, far)} == {e.sequence for e in result.trace.of(0, Kind.SEND)}


def test_recursive_doubling_is_logarithmic() -> None:
    result = run(
        """
        x = torch.ones(1)
        distance = 1
        while distance < world_size:
            other = torch.empty_like(x)
            work = dist.isend(x, rank ^ distance)
            dist.recv(other, rank ^ distance)
            work.wait()
            x = x + other
            distance *= 2
        x.item()
        """,
        nproc_per_node=32,
        intra_node=SLOW,
    )
    assert result.values == [32.0] * 32
    assert result.trace.seconds == pytest.approx(5 * (1e-5 + 4e-9))


def test_a_blocking_send_ends_when_its_receive_is_posted() -> None:
    result = run(
        f"""
        x = torch.ones({MEGABYTE})
        if rank == 0:
            dist.send(x, 1)
        elif rank == 1:
            dist.recv(x, 2)
            dist.recv(x, 0)
        else:
            dist.send(x, 1)
        """,
        nproc_per_node=3,
        intra_node=SLOW,
    )
    (send,) = result.trace.of(0, Kind.SEND)
    assert send.start == 0.0
    assert send.end == pytest.approx(1e-5 + 2e-3), "it leaves after rank 1 has received the other message"


def test_library_collectives_take_the_stated_time() -> None:
    cluster = topology(nproc_per_node=4, intra_node=SLOW)
    result = run(f"dist.all_reduce(torch.ones({40 * MEGABYTE}))", nproc_per_node=4, intra_node=SLOW)
    assert result.trace.seconds == pytest.approx(choose("all_reduce", 40_000_000, (0, 1, 2, 3), cluster).seconds)
    assert result.trace.seconds == pytest.approx(6 * (1e-5 + 1e-2), rel=0.02)
    result = run("dist.barrier()", nproc_per_node=5, intra_node=SLOW)
    expected = choose("barrier", 0, tuple(range(5)), replace(cluster, nproc_per_node=5)).seconds
    assert result.trace.seconds == pytest.approx(expected)


def test_a_parameter_server_receives_and_answers_one_after_the_other() -> None:
    result = run(
        f"""
        x = torch.ones({MEGABYTE})
        if rank == 0:
            others = range(1, world_size)
            pushes = [torch.empty_like(x) for _ in others]
            for work in [dist.irecv(push, source) for push, source in zip(pushes, others)]:
                work.wait()
            for work in [dist.isend(x, to) for to in others]:
                work.wait()
        else:
            dist.send(x, 0)
            dist.recv(x, 0)
        """,
        nproc_per_node=9,
        intra_node=SLOW,
    )
    assert result.trace.seconds == pytest.approx(2 * (1e-5 + 8 * 1e-3), rel=0.02)


def test_a_hierarchical_all_reduce_crosses_the_network_once_for_each_node() -> None:
    # up to the first rank of each node, between those, and down again
    result = run(
        f"""
        per_node = 4
        x, other = torch.ones({MEGABYTE}), torch.empty({MEGABYTE})
        leader = rank - rank % per_node
        if rank == leader:
            for member in range(leader + 1, leader + per_node):
                dist.recv(other, member)
                x += other
            peer = per_node - leader
            work = dist.isend(x, peer)
            dist.recv(other, peer)
            work.wait()
            x += other
            for work in [dist.isend(x, member) for member in range(leader + 1, leader + per_node)]:
                work.wait()
        else:
            dist.send(x, leader)
            dist.recv(x, leader)
        x[0].item()
        """,
        nnodes=2,
        nproc_per_node=4,
        intra_node=FAST,
        inter_node=SLOW,
    )
    assert result.values == [8.0] * 8
    inside, between = 3 * 1e6 / 100e9, 1e6 / 1e9
    assert result.trace.seconds == pytest.approx(inside + 3e-6 + between + 1e-5 + inside + 1e-6, rel=0.02)


def test_asynchronous_collectives_of_a_group_follow_one_another() -> None:
    result = run(
        f"""
        works = [dist.all_reduce(torch.ones({MEGABYTE}), async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
        """,
        nproc_per_node=2,
        intra_node=SLOW,
    )
    alone = choose("all_reduce", 1_000_000, (0, 1), topology(intra_node=SLOW)).seconds
    assert result.trace.seconds == pytest.approx(3 * alone)


def test_preset_figures_are_used() -> None:
    result = run(
        f"x = torch.ones({MEGABYTE}); dist.send(x, 1) if rank == 0 else dist.recv(x, 0)",
        nnodes=2,
        nproc_per_node=1,
        inter_node="ethernet-10g",
    )
    assert result.trace.seconds == pytest.approx(LINKS["ethernet-10g"].latency_seconds + 1e6 / 1.25e9, rel=0.01)


def test_an_unequal_all_to_all_takes_the_time_of_its_busiest_link() -> None:
    # everything goes to rank 0, or each rank sends as much in parts of odd sizes
    send = f"""
        sizes = [{{to_rank_0}} if to == 0 else 3 * ({MEGABYTE} - {{to_rank_0}}) // 9 for to in range(world_size)]
        arriving = [sizes[rank]] * world_size
        x = torch.empty(sum(arriving))
        dist.all_to_all_single(x, torch.ones(sum(sizes)), arriving, sizes)
    """
    how = {"nnodes": 2, "nproc_per_node": 2, "intra_node": FAST, "inter_node": SLOW}
    all_to_one = run(send.format(to_rank_0=MEGABYTE), **how).trace.seconds
    spread = run(send.format(to_rank_0=MEGABYTE // 4 + 4), **how).trace.seconds
    # rank 0's card receives from two ranks, 1 MB each; else each card sends and receives two quarters for each rank
    assert all_to_one - spread == pytest.approx(2e-3 - 1e-3, rel=0.01)


@pytest.mark.parametrize("sizes", [{}, {"nodes_per_rack": 2, "oversubscription": 4.0, "switch_gb_per_s": 50.0}])
def test_equal_parts_cost_the_same_however_they_are_given(sizes: dict[str, float]) -> None:
    cluster = topology(nnodes=4, nproc_per_node=2, intra_node=FAST, inter_node=SLOW, **sizes)  # type: ignore[arg-type]
    ranks = (0, 1, 2, 3, 5, 6)
    even = choose("all_to_all", 6_000_000, ranks, cluster)
    pairs = choose("all_to_all", 6_000_000, ranks, cluster, pairs=((1_000_000,) * 6,) * 6)
    assert pairs.seconds == pytest.approx(even.seconds)
    for loads in ("port_bytes", "nic_bytes", "switch_bytes", "uplink_bytes"):
        seen, wanted = ({at: load for at, load in getattr(plan, loads).items() if load} for plan in (pairs, even))
        assert seen == wanted
