"""Pictures of hierarchical all-reduce: its steps, the bytes of each card, and the steps of chunks in time."""

from __future__ import annotations

import pytest

from labkit.plots import card_traffic, step_lanes, two_levels
from labkit.plots.collectives.two_levels import moves, state
from labkit.trace import Event, Kind, Trace


@pytest.mark.parametrize(("nnodes", "size"), [(2, 3), (3, 2), (1, 4), (4, 1)])
def test_the_steps_bring_the_whole_sum_to_all(nnodes: int, size: int) -> None:
    everything = frozenset(range(nnodes * size))
    assert state(nnodes, size, 3) == [[everything] * size] * (nnodes * size)
    for rank, shards in enumerate(state(nnodes, size, 2)):
        assert [shard for shard, parts in enumerate(shards) if parts is not None] == [rank % size]
    assert all(source // size == destination // size for source, destination, _ in moves(nnodes, size, 0))
    assert all(source % size == destination % size == shard for source, destination, shard in moves(nnodes, size, 1))


def test_the_picture_says_what_is_held_and_what_comes_next() -> None:
    picture = two_levels(2, 3, 1)
    words = [text.get_text() for text in picture.axes[0].texts]
    assert words.count("0+1+2") == words.count("3+4+5") == 3 and {"node 1", "shard 2"} <= set(words)
    assert picture.alt.startswith("Hierarchical all-reduce of 2 nodes with 3 ranks after 1 of 3 steps: 0 of 18 shards")
    assert two_levels(2, 3, 3).alt.count("18 of 18 shards are whole") == 1
    for nnodes, size, step in ((2, 3, 4), (2, 3, -1), (4, 4, 0), (1, 1, 0)):
        with pytest.raises(ValueError, match="must be"):
            two_levels(nnodes, size, step)


def collective(rank: int, name: str, group: str, number: int, start: float, end: float) -> Event:
    return Event(rank, Kind.COLLECTIVE, name, start, end, 4_000_000, None, group, number)


def run() -> Trace:
    """Two nodes of two ranks: two chunks on rank 0, whose peer 2 is late for the first all-reduce."""
    events = [collective(0, "reduce_scatter", "in", number, 0.0, 1.0 + number) for number in (0, 1)]
    for rank, begin in ((0, 1.0), (2, 1.5)):
        events += [collective(rank, "all_reduce", "across", number, begin + number, 3.0 + number) for number in (0, 1)]
    return Trace(4, events, "modelled", {"in": (0, 1), "across": (0, 2)}, ranks_per_machine=2)


def test_collectives_begin_when_all_have_called_and_the_group_is_free() -> None:
    picture = step_lanes({"belt": run()}, node=[0, 1], rank=0)
    bars = [(bar.get_x(), bar.get_width()) for bar in picture.axes[0].patches]  # type: ignore[attr-defined]
    assert bars == [(1.5, 1.5), (3.0, 1.0), (0.0, 1.0), (1.0, 1.0)]
    assert [text.get_text() for text in picture.axes[0].texts] == ["cross 0", "cross 1", "add 0", "add 1"]
    assert picture.axes[0].get_title(loc="left") == "belt: 4 s"
    with pytest.raises(ValueError, match="collectives of rank 1"):
        step_lanes({"belt": run()}, node=[0, 1], rank=1)


def test_cards_show_the_bytes_that_leave_through_them() -> None:
    picture = card_traffic({"one": run(), "again": run()}, [[0, 1], [2, 3]])
    assert [text.get_text() for text in picture.axes[0].texts] == ["8", "8"]
    assert "one: 2 of 4 ranks send to other nodes, at most 8 MB each and 8 MB from one node" in picture.alt
    with pytest.raises(ValueError, match="runs and nodes"):
        card_traffic({}, [[0]])
