"""What the pictures hold: bars, arrows, labels, words. How they look was judged by eye."""

import io

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.text import Annotation
from PIL import Image

from labkit.plots import Curve, chunk_grid, curves, ring_rounds, timeline, traffic_matrix
from labkit.plots.picture import Picture
from labkit.plots.ring import sends, state
from labkit.plots.timeline import merge
from labkit.plots.units import count, duration, size
from labkit.trace import Event, Kind, Trace


def ring(world_size: int, compute: float = 0.0) -> Trace:
    """A perfect ring all-reduce: 2(N-1) rounds of 1 ms, each rank sends 1 MiB to the right."""
    events = [Event(rank, Kind.COMPUTE, "mm", 0.0, compute) for rank in range(world_size) if compute]
    number = 0
    for round in range(2 * (world_size - 1)):
        start = compute + round * 1e-3
        for rank in range(world_size):
            right = (rank + 1) % world_size
            events.append(Event(rank, Kind.SEND, "isend", start, start + 1e-3, 2**20, peer=right, sequence=number))
            events.append(Event(right, Kind.RECEIVE, "irecv", start, start + 1e-3, 2**20, peer=rank, sequence=number))
            number += 1
    return Trace(world_size, events, "modelled")


def incast(world_size: int) -> Trace:
    """Everybody sends 1 MiB to rank 0, which takes them one after the other, 1 s each."""
    events = []
    for rank in range(1, world_size):
        events.append(Event(rank, Kind.SEND, "send", 0.0, float(rank), 2**20, peer=0))
        events.append(Event(0, Kind.RECEIVE, "recv", rank - 1.0, float(rank), 2**20, peer=rank))
    return Trace(world_size, sorted(events, key=lambda e: e.start))


def bars(picture: Picture) -> dict[str, int]:
    """How many bars of each kind a timeline has."""
    found = picture.axes[0].findobj(PolyCollection)
    return {c.get_label(): len(c.get_paths()) for c in found if c.get_label() != "idle"}


def texts(picture: Picture) -> set[str]:
    return {text.get_text() for text in picture.axes[0].texts}


def test_timeline_of_a_ring_has_a_bar_per_burst_and_an_arrow_per_message() -> None:
    picture = timeline(ring(4, compute=2e-3))
    # the six rounds follow one another without a gap: one bar per rank
    assert bars(picture) == {"compute": 4, "send": 4, "receive": 4}
    assert len(picture.axes[0].findobj(Annotation)) == 4 * 6
    assert "mm" in texts(picture)
    axes = picture.axes[0]
    assert axes.get_title(loc="left") == "Timeline · modelled time"
    assert axes.get_xlabel() == "time (ms)" and axes.get_xlim() == (0.0, 8.0)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2", "3"]


def test_timeline_says_measured_and_counts_in_seconds() -> None:
    axes = timeline(incast(4), title="Everybody to rank 0").axes[0]
    assert axes.get_title(loc="left") == "Everybody to rank 0 · measured time"
    assert axes.get_xlabel() == "time (s)"


def test_a_crowded_timeline_drops_arrows_and_labels_and_thins_out_ranks() -> None:
    picture = timeline(ring(256))
    axes = picture.axes[0]
    assert bars(picture) == {"send": 256, "receive": 256}
    assert not axes.findobj(Annotation) and not axes.texts
    assert len(axes.get_yticks()) == 16
    assert picture.get_size_inches()[1] <= 7


def test_an_empty_trace_says_so() -> None:
    assert texts(timeline(Trace(4))) == {"nothing was recorded"}
    assert texts(traffic_matrix(Trace(4))) == {"no messages"}


def test_alt_text_tells_what_the_timeline_shows() -> None:
    # of 4 x 3 s, ranks 1 to 3 send for 1 + 2 + 3, and rank 0 receives for 3
    assert timeline(incast(4)).alt == (
        "Timeline of 4 ranks, measured. 3 s from first to last event; "
        "shares of the ranks' time: send 50%, receive 25%, idle 25%."
    )


def test_bars_nearer_than_a_pixel_are_drawn_as_one() -> None:
    events = [Event(0, Kind.SEND, "send", start, start + 0.1) for start in (0.0, 0.15, 1.0)]
    assert merge(events, 0.06) == [(0.0, 0.25), (1.0, 1.1)]
    assert merge([Event(0, Kind.SEND, "send", 2.0, 2.0)], 0.5) == [(2.0, 2.5)]


def test_traffic_matrix_numbers_what_each_pair_exchanged() -> None:
    picture = traffic_matrix(ring(4))
    assert texts(picture) == {"6.29"}
    assert picture.axes[1].get_ylabel() == "MB"
    assert picture.alt.endswith("every message goes to a neighbour in the ring.")
    assert "every message comes from or goes to rank 0" in traffic_matrix(incast(5)).alt
    assert not texts(traffic_matrix(ring(64)))


def test_chunk_grid_marks_what_is_wrong() -> None:
    picture = chunk_grid([[False, True, True], [False, False, False]])
    assert [text.get_text() for text in picture.axes[0].texts] == ["x", "x"]
    assert picture.alt == "Grid of 2 ranks by 3 chunks: 2 of 6 are wrong. rank 0: chunks 1-2"


@pytest.mark.parametrize("n", range(1, 9))
def test_a_ring_adds_each_contribution_once_and_leaves_shard_r_on_rank_r(n: int) -> None:
    everybody = frozenset(range(n))
    assert all(state(n, n - 1)[rank][rank] == everybody for rank in range(n)), "after the reduce-scatter"
    assert all(parts == everybody for row in state(n, 2 * (n - 1)) for parts in row), "at the end"
    assert sends(n, 2 * (n - 1)) == {}


def test_ring_rounds_draws_who_holds_what() -> None:
    assert {"0+3", "1+2", "rank 3", "chunk 0"} <= texts(ring_rounds(4, 1))
    assert "rank 3 sends chunk 1 to rank 0" in ring_rounds(4, 1).alt
    assert ring_rounds(4, 6).axes[0].get_title(loc="left") == "After 6 rounds every rank holds the whole sum"
    for world_size, round in ((4, 7), (4, -1), (0, 0), (13, 0)):
        with pytest.raises(ValueError, match="must be"):
            ring_rounds(world_size, round)


def test_curves_tell_modelled_from_measured() -> None:
    picture = curves(
        [
            Curve("ring", [2, 4, 8], [1.0, 2.0, 3.0]),
            Curve("ring", [2], [0.5], "measured"),
            Curve("bound", [2, 8], [4.0, 4.0], "formula"),
        ],
        x="ranks",
        y="bus bandwidth (GB/s)",
    )
    modelled, measured, bound = picture.axes[0].lines
    assert modelled.get_color() == measured.get_color() != bound.get_color()
    assert modelled.get_linestyle() != measured.get_linestyle()
    assert modelled.get_markerfacecolor() == "white" != measured.get_markerfacecolor()
    assert [t.get_text() for t in picture.legends[0].get_texts()] == ["ring", "bound", "measured", "modelled"]
    with pytest.raises(ValueError, match="3 x and 1 y"):
        curves([Curve("ring", [1, 2, 3], [1])], x="ranks", y="s")


def test_a_picture_brings_its_alt_text_and_a_sharp_png_into_the_notebook() -> None:
    picture = traffic_matrix(ring(3))
    data, metadata = picture.mimebundle()
    image = metadata["image/png"]
    assert image["alt"] == picture.alt
    assert data["text/plain"] == "<Traffic matrix of 3 ranks: 3 of 9 pairs exchange messages>"
    width, _ = Image.open(io.BytesIO(picture.png())).size
    assert width == pytest.approx(1.6 * image["width"], abs=2)


@pytest.mark.parametrize("n", [1, 2, 16, 64])
def test_every_picture_draws_at_every_size(n: int) -> None:
    for picture in (timeline(ring(n, compute=1e-3)), traffic_matrix(ring(n)), chunk_grid([[True] * n] * n)):
        assert len(picture.png()) > 2000


def test_numbers_are_written_for_people() -> None:
    assert [duration(s) for s in (2.0, 1.5e-3, 2e-6, 3e-9, 0.0)] == ["2 s", "1.5 ms", "2 µs", "3 ns", "0 s"]
    assert [size(n) for n in (0, 999, 16_000, 10**6, 1_500_000_000)] == ["0 B", "999 B", "16 kB", "1 MB", "1.5 GB"]
    assert [count(1, "rank"), count(0, "rank")] == ["1 rank", "0 ranks"]
