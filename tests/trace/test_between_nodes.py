"""Bytes between nodes, of messages and collectives with known sizes."""

from __future__ import annotations

import pytest
from traces import message

from labkit.trace import Event, Kind, Trace, bytes_between_nodes, mixed_collectives

NODES = [[0, 2], [1, 3]]


def called(operation: str, group: tuple[int, ...], nbytes: int = 120) -> Trace:
    events = [Event(rank, Kind.COLLECTIVE, operation, 0.0, 1.0, nbytes, None, "1", 0) for rank in group]
    return Trace(5, events, "modelled", {"1": group})


def test_messages_count_if_they_leave_the_node() -> None:
    trace = Trace(5, [*message(0, 2, 0, 0, 1, 0), *message(0, 1, 0, 0, 1, 1), *message(3, 4, 0, 0, 1, 2)])
    sent = bytes_between_nodes(trace, NODES)
    assert sent == [[0, 8, 0], [0] * 3, [0] * 3, [0, 0, 8], [0] * 3]


@pytest.mark.parametrize(
    ("operation", "sent"),
    [
        ("all_reduce", 120),
        ("reduce_scatter_tensor", 60),
        ("all_gather_into_tensor", 120),
        ("broadcast", 120),
        ("barrier", 0),
        ("monitored_barrier", 0),
    ],
)
def test_a_collective_counts_as_a_ring(operation: str, sent: float) -> None:
    found = bytes_between_nodes(called(operation, (0, 3)), NODES)
    assert found[0] == [0, sent, 0] and found[3] == [sent, 0, 0]


def test_a_collective_inside_a_node_crosses_nothing() -> None:
    assert not any(map(any, bytes_between_nodes(called("all_reduce", (1, 3)), NODES)))


def test_groups_of_several_nodes_and_several_ranks_of_one_are_mixed() -> None:
    assert len(mixed_collectives(called("all_reduce", (0, 1, 2)), NODES)) == 3
    for group in ((0, 2), (0, 1), (3, 4)):
        assert mixed_collectives(called("all_reduce", group), NODES) == []
    assert mixed_collectives(called("barrier", (0, 1, 2, 3)), NODES) == []
