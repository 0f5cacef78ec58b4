"""The critical path of traces with known answers."""

from itertools import pairwise

import pytest
from traces import collective, compute, gpipe, message, trace

from labkit import Job, virtual
from labkit.trace import Kind, Trace
from labkit.trace.critical_path import CriticalPath, critical_path


def shape(path: CriticalPath) -> list[tuple[int, str, float, float]]:
    return [(step.rank, str(step.kind or "waiting"), step.start, step.end) for step in path.steps]


def test_it_goes_through_the_rank_that_all_wait_for() -> None:
    # rank 1 computes longest, so the all-reduce begins when it has joined
    path = critical_path(
        trace(
            3,
            *(compute(rank, 0.0, end) for rank, end in enumerate((2.0, 5.0, 3.0))),
            collective([2.0, 5.0, 3.0], 6.0, 0),
            compute(2, 6.0, 8.0),
        )
    )
    assert shape(path) == [(1, "compute", 0.0, 5.0), (2, "collective", 5.0, 6.0), (2, "compute", 6.0, 8.0)]
    assert (path.compute, path.communication, path.waiting, path.seconds) == (7.0, 1.0, 0.0, 8.0)


def test_it_crosses_a_message_to_the_side_that_came_last() -> None:
    late_sender = trace(2, compute(0, 0.0, 4.0), message(0, 1, 4.0, 1.0, 5.0, 0), compute(1, 5.0, 6.0))
    assert shape(critical_path(late_sender)) == [
        (0, "compute", 0.0, 4.0),
        (1, "receive", 4.0, 5.0),
        (1, "compute", 5.0, 6.0),
    ]
    late_receiver = trace(2, compute(1, 0.0, 4.0), message(0, 1, 0.0, 4.0, 5.0, 0), compute(0, 5.0, 6.0))
    assert shape(critical_path(late_receiver)) == [
        (1, "compute", 0.0, 4.0),
        (0, "send", 4.0, 5.0),
        (0, "compute", 5.0, 6.0),
    ]


def test_hidden_communication_is_not_on_it() -> None:
    hidden = trace(2, *(compute(r, 0.0, 1.0) for r in (0, 1)), collective([1.0, 1.0], 3.0, 0), compute(0, 1.0, 4.0))
    assert shape(critical_path(hidden)) == [(0, "compute", 0.0, 1.0), (0, "compute", 1.0, 4.0)]


def test_messages_queue_at_the_port_of_one_rank() -> None:
    # three ranks send to rank 0 at once; its port takes one after the other
    incast = trace(4, *(message(rank, 0, 0.0, 0.0, float(rank), rank) for rank in (1, 2, 3)))
    path = critical_path(incast)
    assert [(s.start, s.end, s.event.peer) for s in path.steps if s.event] == [(0, 1, 1), (1, 2, 2), (2, 3, 3)]
    assert path.communication == 3.0
    # and three from rank 0, each a second in its port and half a second in transit
    fan_out = trace(4, *(message(0, rank, 0.0, 0.0, rank + 0.5, rank, left=float(rank)) for rank in (1, 2, 3)))
    path = critical_path(fan_out)
    assert [(s.rank, s.start, s.end) for s in path.steps] == [(0, 0.0, 1.0), (0, 1.0, 2.0), (3, 2.0, 3.5)]


def test_collectives_of_one_group_run_one_after_the_other() -> None:
    queued = trace(2, collective([0.0, 0.0], 2.0, 0), collective([1.0, 0.5], 4.0, 1))
    assert [(s.start, s.end, s.event and s.event.sequence) for s in critical_path(queued).steps] == [
        (0, 2, 0),
        (2, 4, 1),
    ]


def test_what_was_not_recorded_is_waiting() -> None:
    slept = trace(1, compute(0, 0.0, 1.0), compute(0, 3.0, 4.0))
    assert shape(critical_path(slept)) == [(0, "compute", 0, 1), (0, "waiting", 1, 3), (0, "compute", 3, 4)]
    assert critical_path(slept).waiting == 2.0


def test_a_pipeline_s_path_is_all_computing() -> None:
    path = critical_path(gpipe(4, 6))
    assert path.seconds == path.compute == 2 * (4 + 6 - 1)
    assert {step.rank for step in path.steps} == {0, 1, 2, 3}


def test_nothing_has_no_path() -> None:
    assert critical_path(Trace(4)) == CriticalPath(())
    assert critical_path(Trace(4)).seconds == 0.0


RING = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
x = torch.ones(1000)
for _ in range(2 * (n - 1)):
    works = [dist.isend(x, (rank + 1) % n), dist.irecv(torch.empty(1000), (rank - 1) % n)]
    for work in works:
        work.wait()
dist.all_reduce(x)
"""


@pytest.mark.parametrize("ranks", [2, 5])
def test_of_a_real_run_it_has_no_gaps(ranks: int) -> None:
    recorded = virtual(nproc_per_node=ranks).run(Job(source=RING)).raise_if_failed().trace
    path = critical_path(recorded)
    assert all(a.end == b.start for a, b in pairwise(path.steps))
    assert path.seconds == pytest.approx(recorded.seconds)
    assert path.steps[-1].kind is Kind.COLLECTIVE
    assert path.communication == pytest.approx(recorded.seconds - path.compute - path.waiting)
    # a message of each round, and the all-reduce
    assert len([s for s in path.steps if s.kind in (Kind.SEND, Kind.RECEIVE)]) >= 2 * (ranks - 1)
