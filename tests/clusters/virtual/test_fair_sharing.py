"""Messages that cross the same links at once share them by max-min fairness: known answers, and a reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from itertools import count
from textwrap import dedent
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import Job, Run, virtual
from labkit.clusters.virtual import link
from labkit.clusters.virtual.scheduler.fair_sharing import Channel, Flow, fair_rates
from labkit.clusters.virtual.scheduler.network import Connection, Message, Network
from labkit.clusters.virtual.scheduler.requests import Receive, Send
from labkit.hardware import Link
from labkit.trace import Kind

SLOT = 1e-3  # seconds of 1 MB on SLOW
SLOW = Link("slow", gb_per_s=1.0, latency_seconds=1e-9, source="made up for round numbers")
FAST = Link("fast", gb_per_s=100.0, latency_seconds=1e-9, source="made up for round numbers")
HEAD = """
import time, torch, torch.distributed as dist
dist.init_process_group()
rank, n = dist.get_rank(), dist.get_world_size()

def megabytes(number):
    return torch.ones(round(number * 250_000))
"""


def run(source: str, n: int, **options: Any) -> Run:
    cluster = virtual(
        **{"nnodes": n, "nproc_per_node": 1, "intra_node": FAST, "inter_node": SLOW, "account": False, **options}
    )
    return cluster.run(Job(source=HEAD + dedent(source))).raise_if_failed()


def arrivals(run: Run) -> dict[tuple[int, int], list[float]]:
    """When messages were received, in slots, by sender and receiver."""
    found: dict[tuple[int, int], list[float]] = {}
    for event in run.trace.events:
        if event.kind is Kind.RECEIVE:
            assert event.peer is not None
            found.setdefault((event.peer, event.rank), []).append(event.end / SLOT)
    return found


# Known answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [4, 8, 16])
def test_an_exchange_of_all_with_all_posted_at_once_takes_one_slot_for_each_peer(n: int) -> None:
    source = """
        others = [peer for peer in range(n) if peer != rank]
        sends = [dist.P2POp(dist.isend, megabytes(1), peer) for peer in others]
        for work in dist.batch_isend_irecv(sends + [dist.P2POp(dist.irecv, megabytes(1), peer) for peer in others]):
            work.wait()
    """
    result = run(source, n)
    assert result.trace.seconds / SLOT == pytest.approx(n - 1, rel=1e-4)
    ends = [times[0] for times in arrivals(result).values()]
    assert len(ends) == n * (n - 1) and max(ends) == pytest.approx(min(ends), rel=1e-9)


def test_known_answers_of_contention() -> None:
    # one program for all: ranks of one pattern share nothing with those of another
    source = """
        def receive(peer, size=1):
            return dist.irecv(megabytes(size), peer)

        def send(peer, size=1):
            return dist.isend(megabytes(size), peer)

        works = []
        if rank == 0:
            works = [receive(peer) for peer in (1, 2, 3)]  # incast
        elif rank in (1, 2, 3):
            works = [send(0)]
        elif rank == 4:
            works = [send(5, 3), send(6, 1)]  # a short message behind a long one, to another rank
        elif rank == 5:
            works = [receive(4, 3)]
        elif rank == 6:
            works = [receive(4, 1)]
        elif rank == 7:
            works = [send(8, 2)]
            time.sleep(0.001)  # half of the first one has passed when the other one begins
            works.append(send(9, 2))
        elif rank in (8, 9):
            works = [receive(7, 2)]
        elif rank == 10:
            works = [send(11, 3), send(11, 1)]  # to the same rank: one connection
        elif rank == 11:
            works = [receive(10, 3), receive(10, 1)]
        for work in works:
            work.wait()
    """
    result = run(source, 12)
    ends = arrivals(result)
    assert [ends[peer, 0] for peer in (1, 2, 3)] == [pytest.approx([3], rel=1e-4)] * 3, "a third of the link each"
    assert [*ends[4, 5], *ends[4, 6]] == pytest.approx([4, 2], rel=1e-4), "the short one takes half of the link"
    assert [*ends[7, 8], *ends[7, 9]] == pytest.approx([3, 4], rel=1e-4), "1 MB alone, the other one at half the rate"
    assert ends[10, 11] == pytest.approx([3, 4], rel=1e-4), "one after the other"
    sends = [event.end / SLOT for rank in (1, 2, 3) for event in result.trace.of(rank, Kind.SEND)]
    assert sends == pytest.approx([1, 1, 1], rel=1e-4), "a busy receiver does not hold up its senders"


def test_a_message_takes_what_another_one_cannot_use() -> None:
    # ranks 0 and 1 share a card with a rate of 1; rank 0's message goes to rank 4, whose card also takes two others
    source = """
        pairs = {0: 4, 1: 6, 2: 4, 3: 4}
        shared = {peer: rank for rank, peer in pairs.items()}
        if rank in pairs:
            dist.send(megabytes(1), pairs[rank])
        if rank == 4:
            for work in [dist.irecv(megabytes(1), peer) for peer in (0, 2, 3)]:
                work.wait()
        if rank == 6:
            dist.recv(megabytes(1), 1)
    """
    # nodes of two ranks: 0 and 1, 2 and 3, 4 and 5, 6 and 7
    ends = arrivals(run(source, 4, nproc_per_node=2))
    assert [*ends[0, 4], *ends[2, 4], *ends[3, 4]] == pytest.approx([3, 3, 3], rel=1e-4), "a third of the card each"
    assert ends[1, 6] == pytest.approx([1.5], rel=1e-4), "the two thirds of its card that the other one leaves"


def test_a_link_that_slows_down_or_is_cut_concerns_messages_under_way() -> None:
    source = """
        x = megabytes(2)
        error = ""
        try:
            if rank in (0, 2):
                dist.send(x, rank + 1)
            else:
                dist.recv(x, rank - 1)
        except RuntimeError as caught:
            error = str(caught)
        error, time.time()
    """
    faults = [link(node=0, factor=0.5, at=SLOT), link(node=3, factor=0.0, at=SLOT)]
    result = run(source, 4, faults=faults)
    assert arrivals(result)[0, 1] == pytest.approx([3], rel=1e-4), "1 MB at the full rate, 1 MB at half of it"
    assert result.ranks[0].value == ("", pytest.approx(result.ranks[1].value[1], rel=1e-4))
    for rank in (2, 3):
        error, failed_at = result.ranks[rank].value
        assert "network card 0 of node 3" in error
        assert result.ranks[1].value[1] - failed_at == pytest.approx(2 * SLOT, rel=1e-3), "it fails when it is cut"


# Reference ---------------------------------------------------------------------------------------------------------

Flows = dict[int, tuple[int, ...]]
"""The links of each flow."""
Load = tuple[Fraction, int, int]
"""A collective's load: when, on which link, how many bytes."""
LEAVING = 1
"""Number of links of each flow that are the sender's."""


@dataclass(frozen=True)
class Traffic:
    """Messages, by number, and collectives."""

    rates: list[Fraction]
    """Of each link."""
    flows: Flows
    sizes: dict[int, int]
    begins: dict[int, int]
    behind: frozenset[int]
    """Messages on the same connection as the one before."""
    loads: list[Load]


@st.composite
def traffic(draw: Callable[..., Any]) -> Traffic:
    rates = draw(st.lists(st.sampled_from([1, 2, 3, 10]), min_size=1, max_size=6))
    on = st.integers(0, len(rates) - 1)
    paths = draw(st.lists(st.lists(on, min_size=1, max_size=3, unique=True), min_size=1, max_size=10))
    behind = draw(st.frozensets(st.integers(1, len(paths) - 1))) if len(paths) > 1 else frozenset()
    begins = draw(st.lists(st.integers(0, 4), min_size=len(paths), max_size=len(paths)))
    for number in sorted(behind):
        paths[number], begins[number] = paths[number - 1], max(begins[number - 1 : number + 1])
    sizes = draw(st.lists(st.integers(1, 12), min_size=len(paths), max_size=len(paths)))
    drawn = draw(st.lists(st.tuples(st.integers(0, 6), on, st.integers(1, 6)), max_size=3))
    # at times at which no message begins or ends: it would be open which of them counts as there. A load makes others
    # end later, by fractions with its own prime number only
    loads = [(time + Fraction(1, prime), *load) for prime, (time, *load) in zip((97, 89, 83), drawn, strict=False)]
    flows = {number: tuple(path) for number, path in enumerate(paths)}
    by_number = dict(enumerate(sizes)), dict(enumerate(begins))
    return Traffic([Fraction(rate) for rate in rates], flows, *by_number, behind, sorted(loads))


def reference_rates(flows: Flows, rates: Sequence[Fraction]) -> dict[int, Fraction]:
    """Max-min fair rates, by the definition: fix the flows of the link with the least to give, and go on without it."""
    left, found, open_ = list(rates), dict[int, Fraction](), dict(flows)
    while open_:
        users = {at: [f for f, links in open_.items() if at in links] for at in range(len(rates))}
        at = min((at for at in users if users[at]), key=lambda at: left[at] / len(users[at]))
        share = left[at] / len(users[at])
        for flow in users[at]:
            found[flow] = share
            for other in open_.pop(flow):
                left[other] -= share
    return found


def reference_ends(case: Traffic) -> tuple[dict[int, Fraction], dict[int, Fraction]]:
    """When each message and each send ends, by advancing all from one event to the next, in exact arithmetic."""
    now, rates = Fraction(0), case.rates
    left = {flow: Fraction(size) for flow, size in case.sizes.items()}
    sending = dict(left)
    ends, sent = dict[int, Fraction](), dict[int, Fraction]()
    to_come = list(case.loads)
    blocks: list[list[tuple[Fraction, Fraction]]] = [[] for _ in rates]

    def under_way(over: dict[int, Fraction]) -> list[int]:
        begun = [flow for flow, begin in case.begins.items() if begin <= now and flow not in over]
        return [flow for flow in begun if flow not in case.behind or flow - 1 in over]

    def free() -> list[Fraction]:
        reserved = [any(begin <= now < end for begin, end in blocks[at]) for at in range(len(rates))]
        return [Fraction(0) if reserved[at] else rate for at, rate in enumerate(rates)]

    while left:
        moving = reference_rates({flow: case.flows[flow] for flow in under_way(ends)}, free())
        if to_come and to_come[0][0] <= now:
            _, at, nbytes = to_come.pop(0)
            there = [flow for flow in moving if at in case.flows[flow]]
            present = sum((left[flow] for flow in there), Fraction(0)) / rates[at]
            reserved = sum((max(end - max(begin, now), 0) for begin, end in blocks[at]), Fraction(0))
            due = [now + left[flow] / moving[flow] for flow in there if moving[flow]]
            start = max([now + present + reserved, *due, *[end for _, end in blocks[at]]])
            blocks[at].append((start, start + nbytes / rates[at]))
            continue
        leaving = reference_rates({flow: case.flows[flow][:LEAVING] for flow in under_way(sent)}, free())
        steps = [left[flow] / rate for flow, rate in moving.items() if rate]
        steps += [sending[flow] / rate for flow, rate in leaving.items() if rate]
        times = (
            *case.begins.values(),
            *[load[0] for load in to_come],
            *[at for b in blocks for pair in b for at in pair],
        )
        step = min(Fraction(step) for step in [*steps, *[time - now for time in times if time > now]])
        now += step
        for flow, rate in leaving.items():
            sending[flow] -= rate * step
        for flow, rate in moving.items():
            left[flow] -= rate * step
            if not left[flow]:
                ends[flow] = now
                del left[flow]
        for flow in [flow for flow in sending if not sending[flow] or flow not in left]:
            sent[flow] = now
            del sending[flow]
    return ends, sent


@settings(max_examples=100, deadline=None)
@given(traffic())
def test_rates_are_those_of_the_reference_and_fill_no_link_beyond_its_rate(case: Traffic) -> None:
    flows, rates = case.flows, case.rates
    channels = [Channel(str(at), float(rate)) for at, rate in enumerate(rates)]
    made = {number: Flow(tuple([channels[at] for at in path]), 1) for number, path in flows.items()}
    for flow in made.values():
        for channel in flow.channels:
            channel.flows[flow] = None
    found = fair_rates(channels, 0.0)
    expected = reference_rates(flows, rates)
    assert [found[made[number]] for number in flows] == pytest.approx([float(expected[number]) for number in flows])
    total = [sum(found[flow] for flow in channel.flows) for channel in channels]
    assert all(carried <= float(rate) * (1 + 1e-9) for carried, rate in zip(total, rates, strict=True))
    for flow, rate in found.items():  # max-min fair: each flow has a full link on which no other one gets more
        assert any(
            total[at] == pytest.approx(float(rates[at])) and rate == pytest.approx(max(found[f] for f in channel.flows))
            for at, channel in enumerate(channels)
            if channel in flow.channels
        )


@settings(max_examples=200, deadline=None)
@given(traffic())
def test_messages_and_sends_end_when_the_reference_says_and_again_at_the_same_time(case: Traffic) -> None:
    found = simulated(case)
    assert found == simulated(case)
    for ends, expected in zip(found, reference_ends(case), strict=True):
        assert [ends[number] for number in case.flows] == pytest.approx([float(expected[n]) for n in case.flows])


def simulated(case: Traffic) -> tuple[dict[int, float], dict[int, float]]:
    """When each message and each send ends on the virtual network."""
    agenda: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
    ends, sent = dict[int, float](), dict[int, float]()
    order = count()

    def at(time: float, act: Callable[[float, Any], None], subject: Any, last: bool = False) -> None:
        heappush(agenda, (time, next(order) + last * 10**9, act, subject))

    def left(time: float, message: Message) -> None:
        sent[message.send.rank] = time

    def arrived(time: float, message: Message) -> None:
        ends[message.send.rank] = time
        sent.setdefault(message.send.rank, time)

    network = Network(virtual().topology, at, left, arrived, lambda *_: pytest.fail("no link is cut"))
    channels = [Channel(str(number), float(rate)) for number, rate in enumerate(case.rates)]
    connection = Connection((), 0, 0.0)
    for number, path in case.flows.items():
        if number not in case.behind:
            connection = Connection(tuple([channels[at] for at in path]), LEAVING, 0.0)
        size = case.sizes[number]
        send = Send("", "send", "", 0, 0, torch.uint8, size, size, None)
        send.rank = number
        message = Message(send, Receive("", "recv", "", number, 0, torch.uint8, size), connection)
        at(case.begins[number], network.begin, message)
    for begin, on, nbytes in case.loads:
        at(float(begin), lambda time, load: network.reserve(time, time, load), [(channels[on], nbytes)])
    while agenda:
        time, _, act, subject = heappop(agenda)
        act(time, subject)
    return ends, sent
