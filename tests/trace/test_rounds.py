"""Round counts of known cases: chains, servers, exchanges."""

from traces import message, trace

from labkit import Job, virtual
from labkit.trace.rounds import rounds


def test_a_chain_takes_a_round_for_each_message() -> None:
    assert rounds(trace(3, message(0, 1, 0.0, 0.0, 1.0, 0), message(1, 2, 1.0, 0.0, 2.0, 0))) == 2


def test_messages_that_do_not_wait_for_each_other_are_one_round() -> None:
    assert rounds(trace(4, message(0, 1, 0.0, 0.0, 1.0, 0), message(2, 3, 0.0, 0.0, 5.0, 0))) == 1
    exchange = message(0, 1, 0.0, 0.0, 1.0, 0), message(1, 0, 0.0, 0.0, 1.0, 0)
    assert rounds(trace(2, *exchange)) == 1
    assert rounds(trace(2)) == 0


def test_a_rank_sends_and_receives_one_at_a_time() -> None:
    posted_at_once = [message(0, rank, 0.0, 0.0, float(rank), rank) for rank in (1, 2, 3)]
    assert rounds(trace(4, *posted_at_once)) == 3
    incast = [message(rank, 0, 0.0, 0.0, float(rank), rank) for rank in (1, 2, 3)]
    assert rounds(trace(4, *incast)) == 3


def test_a_receiver_that_asks_late_makes_a_round() -> None:
    assert rounds(trace(3, message(1, 0, 0.0, 0.0, 1.0, 0), message(2, 1, 0.0, 1.0, 2.0, 0))) == 2


def test_a_ring_of_four_has_three_rounds() -> None:
    cell = """
import torch, torch.distributed as dist
dist.init_process_group()
rank, theirs = dist.get_rank(), torch.empty(1)
for _ in range(3):
    sending = dist.isend(torch.ones(1), (rank + 1) % 4)
    dist.recv(theirs, (rank - 1) % 4)
    sending.wait()
"""
    assert rounds(virtual(nproc_per_node=4).run(Job(source=cell)).raise_if_failed().trace) == 3
