"""Contents of plots: bars, arrows, labels, texts. Their appearance was reviewed by eye."""

import io
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.text import Annotation
from PIL import Image

from labkit.plots import (
    Curve,
    bubbles,
    chunk_grid,
    critical_path,
    curves,
    memory,
    overlap,
    palette,
    ring_rounds,
    timeline,
    traffic_matrix,
)
from labkit.plots.collectives.ring import sends, state
from labkit.plots.picture import Picture
from labkit.plots.traces.memory import columns
from labkit.plots.traces.rank_lanes import RankLanes
from labkit.plots.traces.timeline import merge
from labkit.trace import Category, Event, Kind, Membership, MemorySample, Trace
from labkit.units import count, duration, size


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
    """Every other rank sends 1 MiB to rank 0, which receives them one after the other, 1 s each."""
    events = []
    for rank in range(1, world_size):
        events.append(Event(rank, Kind.SEND, "send", 0.0, float(rank), 2**20, peer=0))
        events.append(Event(0, Kind.RECEIVE, "recv", rank - 1.0, float(rank), 2**20, peer=rank))
    return Trace(world_size, sorted(events, key=lambda e: e.start))


def bars(picture: Picture) -> dict[str, int]:
    """Return the number of bars of each kind in a timeline."""
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


def ranks_of(picture: Picture) -> list[str]:
    """The labels of the lanes."""
    return [label.get_text() for label in picture.axes[0].get_yticklabels()]


def machines_of(picture: Picture) -> list[str]:
    """The labels at the right edge."""
    return [label.get_text() for edge in picture.axes[0].child_axes for label in edge.get_yticklabels()]


def test_a_timeline_of_many_ranks_shows_a_sample_and_no_arrows() -> None:
    picture = timeline(ring(256))
    axes = picture.axes[0]
    assert bars(picture) == {"send": 16, "receive": 16}
    assert not axes.findobj(Annotation)
    assert ranks_of(picture) == [str(rank) for rank in range(0, 256, 16)]
    assert axes.get_ylabel() == "rank (every 16th of 256)"
    assert picture.alt.endswith("Not all ranks are shown: every 16th of 256.")
    assert picture.get_size_inches()[1] <= 7
    assert len(bars(timeline(ring(32)))) == 2 and timeline(ring(32)).axes[0].get_ylabel() == "rank"
    assert timeline(ring(64)).axes[0].get_ylabel() == "rank (every 4th of 64)"


def test_machines_have_borders_and_numbers() -> None:
    picture = timeline(replace(ring(8), ranks_per_machine=4))
    assert [line.get_ydata()[0] for line in picture.axes[0].lines] == [3.5]
    assert machines_of(picture) == ["machine 0", "machine 1"]
    assert picture.alt.startswith("Timeline of 8 ranks on 2 machines, modelled. ")
    for alone in (ring(8), replace(ring(8), ranks_per_machine=8)):
        assert not timeline(alone).axes[0].lines and not machines_of(timeline(alone))
        assert timeline(alone).alt.startswith("Timeline of 8 ranks, modelled. ")
    each = timeline(replace(ring(8), ranks_per_machine=1))
    assert not each.axes[0].lines and each.axes[0].get_ylabel() == "rank (one per machine)"


def test_of_many_machines_one_is_shown_whole() -> None:
    trace = replace(ring(64), ranks_per_machine=8)
    picture = timeline(trace)
    assert ranks_of(picture) == [*map(str, range(8)), *map(str, range(8, 64, 8))]
    assert machines_of(picture) == [f"machine {machine}" for machine in range(8)]
    assert picture.axes[0].get_ylabel() == "rank (15 of 64, machine 0 and the first rank of each other)"
    # a rank without a lane is on the path in its machine's
    lanes = RankLanes.of(trace)
    assert [lanes.lane(rank) for rank in (0, 7, 8, 15, 16, 63)] == [0, 7, 8, 8, 9, 14]
    borders = len(picture.axes[0].lines)
    (path,) = critical_path(trace).axes[0].lines[borders:]
    assert max(path.get_ydata()) <= 14
    # 32 machines are too many for a lane each beside a whole one
    assert timeline(replace(ring(256), ranks_per_machine=8)).axes[0].get_ylabel() == "rank (every 16th of 256)"


def test_a_measured_timeline_begins_when_the_process_group_is_complete() -> None:
    joined = tuple(Membership(rank, "0", "gloo", 2.0, None) for rank in range(4))
    imports = [Event(rank, Kind.COMPUTE, "compute", 0.0, 1.5) for rank in range(4)]
    work = [event._replace(start=event.start + 2, end=event.end + 2) for event in incast(4).events]
    trace = Trace(4, [*imports, *work], memberships=joined)
    picture = timeline(trace)
    assert bars(picture) == {"send": 3, "receive": 1}
    assert picture.axes[0].get_xlim() == (0.0, 3.0)
    said = "the first 2 s, up to init_process_group, are not shown"
    assert picture.axes[0].get_xlabel() == f"time (s); {said}"
    assert picture.alt == f"{timeline(incast(4)).alt} {said.capitalize()}."
    assert said in critical_path(trace).axes[0].get_xlabel()
    # virtual ranks import nothing; and there may be nothing else to show
    assert timeline(replace(trace, clock="modelled")).axes[0].get_xlim() == (0.0, 5.0)
    assert timeline(replace(trace, events=imports)).axes[0].get_xlabel() == "time (s)"


def test_an_empty_trace_says_so() -> None:
    assert texts(timeline(Trace(4))) == {"nothing was recorded"}
    assert texts(traffic_matrix(Trace(4))) == {"no messages from rank to rank"}


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
    # all send equally much: a colour bar would have one colour
    assert len(picture.axes) == 1
    assert [text.get_text() for text in picture.legends[0].get_texts()] == ["6.29 MB to each"]
    twice = Trace(4, [*ring(4).events, Event(0, Kind.SEND, "send", 1.0, 2.0, 2**20, peer=2)])
    assert traffic_matrix(twice).axes[1].get_ylabel() == "MB"
    assert picture.alt.endswith("every message goes to a neighbour in the ring.")
    assert "every message comes from or goes to rank 0" in traffic_matrix(incast(5)).alt
    assert not texts(traffic_matrix(ring(64)))


def test_chunk_grid_marks_what_is_wrong() -> None:
    picture = chunk_grid([[False, True, True], [False, False, False]])
    assert [text.get_text() for text in picture.axes[0].texts] == ["x", "x"]
    assert picture.alt == "Grid of 2 ranks by 3 chunks: 2 of 6 are wrong. rank 0: chunks 1-2"
    # ranks that are wrong alike share a row
    axes = chunk_grid([[True] * 4] * 3 + [[False] * 4]).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0-2", "3"] and len(axes.texts) == 4


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
    of_ring = Curve("ring", [2, 8], [1.0, 3.0], "formula")
    beside = curves([Curve("ring", [2, 8], [1.1, 3.1]), of_ring], x="ranks", y="s")
    assert [t.get_text() for t in beside.legends[0].get_texts()] == ["ring", "modelled", "formula"]
    ticks = [tick.get_text() for tick in picture.axes[0].get_xticklabels()]
    formula = Curve("bound", [16], [4.0], "formula")
    assert ticks == ["2", "4", "8"]
    assert [t.get_text() for t in curves([of_ring, formula], x="ranks", y="s").axes[0].get_xticklabels()] == [
        "2",
        "8",
        "16",
    ]
    with pytest.raises(ValueError, match="3 x and 1 y"):
        curves([Curve("ring", [1, 2, 3], [1])], x="ranks", y="s")


def test_a_curve_that_another_one_hides_is_larger() -> None:
    steps = [1, 2, 4]
    same = [Curve(name, steps, [9.0, 4.0, 2.0]) for name in "abc"]
    lines = curves([*same, Curve("other", steps, [9.0, 4.0, 3.0])], x="ranks", y="s").axes[0].lines
    sizes = [line.get_markersize() for line in lines]
    assert sizes[0] > sizes[1] > sizes[2] == sizes[3]
    # a logarithmic axis separates what a linear one cannot
    near = [Curve("a", steps, [9.0, 0.1, 0.01]), Curve("b", steps, [9.0, 0.1, 0.03])]
    for log, larger in (("x", True), ("xy", False)):
        first, second = curves(near, x="ranks", y="s", log=log).axes[0].lines
        assert (first.get_markersize() > second.get_markersize()) is larger


def test_a_picture_brings_its_alt_text_and_a_sharp_png_into_the_notebook() -> None:
    picture = traffic_matrix(ring(3))
    data, metadata = picture.mimebundle()
    image = metadata["image/png"]
    assert image["alt"] == picture.alt
    assert data["text/plain"] == "<Traffic matrix of 3 ranks: 3 of 9 pairs exchange messages>"
    width, _ = Image.open(io.BytesIO(picture.png())).size
    assert width == pytest.approx(1.6 * image["width"], abs=2)
    assert '<img class="labkit-picture-' in data["text/html"] and f'alt="{picture.alt}"' in data["text/html"]


def test_on_a_dark_page_the_page_is_dark_and_kinds_keep_their_colours() -> None:
    light, dark = (np.array(Image.open(io.BytesIO(image))) for image in timeline(ring(4, compute=2e-3)).themed())

    def share(image: np.ndarray, colour: str) -> float:
        return float((image == [int(colour[i : i + 2], 16) for i in (1, 3, 5)]).all(axis=2).mean())

    assert light.shape == dark.shape
    assert share(light, "#FFFFFF") > 0.2 and share(dark, "#111111") > 0.2
    assert share(light, "#111111") == share(dark, "#FFFFFF") == 0
    for kind in (Kind.COMPUTE, Kind.SEND, Kind.RECEIVE):
        assert share(dark, palette.KIND[kind]) == pytest.approx(share(light, palette.KIND[kind]), rel=0.05) != 0
    assert share(dark, palette.DARK_IDLE) == pytest.approx(share(light, palette.IDLE), rel=0.05)


@pytest.mark.parametrize("n", [1, 2, 16, 64])
def test_every_picture_draws_at_every_size(n: int) -> None:
    trace = ring(n, compute=1e-3)
    for draw in (timeline, traffic_matrix, critical_path, overlap, bubbles):
        assert len(draw(trace).png()) > 2000
    for picture in (chunk_grid([[True] * n] * n), memory(filled())):
        assert len(picture.png()) > 2000


def test_numbers_are_written_for_people() -> None:
    assert [duration(s) for s in (2.0, 1.5e-3, 2e-6, 3e-9, 0.0)] == ["2 s", "1.5 ms", "2 µs", "3 ns", "0 s"]
    assert [size(n) for n in (0, 999, 16_000, 10**6, 1_500_000_000)] == ["0 B", "999 B", "16 kB", "1 MB", "1.5 GB"]
    assert [count(1, "rank"), count(0, "rank")] == ["1 rank", "0 ranks"]


def pipeline() -> Trace:
    """Two stages, two microbatches, each 1 s forward on both stages; messages take no time."""
    computed = [(0, 0.0), (0, 1.0), (1, 1.0), (1, 2.0)]
    events = [Event(rank, Kind.COMPUTE, "compute", start, start + 1.0) for rank, start in computed]
    for number, time in enumerate((1.0, 2.0)):
        events.append(Event(0, Kind.SEND, "isend", time, time, 8, 1, "0", number))
        events.append(Event(1, Kind.RECEIVE, "recv", time, time, 8, 0, "0", number))
    return Trace(2, sorted(events, key=lambda e: e.start), "modelled")


def overlapped() -> Trace:
    """Rank 0 computes through half of its all-reduce, rank 1 through none."""
    events = [Event(0, Kind.COMPUTE, "compute", 0.0, 2.0), Event(1, Kind.COMPUTE, "compute", 0.0, 1.0)]
    events += [Event(rank, Kind.COLLECTIVE, "all_reduce", 1.0, 3.0, 64, None, "0", 0) for rank in (0, 1)]
    return Trace(2, events, "modelled")


def test_the_critical_path_is_a_line_over_the_timeline() -> None:
    picture = critical_path(pipeline())
    (line,) = picture.axes[0].lines
    assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == [
        (0.0, 0), (1.0, 0), (1.0, 1), (2.0, 1), (2.0, 1), (3.0, 1)
    ]  # fmt: skip
    assert picture.axes[0].get_title(loc="right") == "compute 100%"
    assert picture.alt == "Critical path of 2 ranks, modelled. 3 s over 2 ranks: 100% compute."
    assert [text.get_text() for text in picture.legends[0].get_texts()][-2:] == ["idle", "critical path"]
    assert texts(critical_path(Trace(2))) == {"nothing was recorded"}


def test_overlap_says_how_much_communication_is_hidden() -> None:
    picture = overlap(overlapped())
    assert picture.axes[0].get_title(loc="left") == "Overlap · 25% of communication is hidden · modelled time"
    assert texts(picture) == {"50%", "0%", "hidden"}
    assert picture.alt.endswith("as a share of communication: 0: 50%, 1: 0%.")
    assert "no communication" in overlap(Trace(2)).axes[0].get_title(loc="left")


def test_bubbles_by_rank_and_by_stage() -> None:
    assert texts(bubbles(pipeline())) == {"33%", "bubble"}
    staged = bubbles(overlapped(), stages=[[0, 1]])
    assert staged.axes[0].get_ylabel() == "stage" and texts(staged) == {"50%", "bubble"}
    assert staged.alt.endswith("without computing: 0: 50%.")
    with pytest.raises(ValueError, match="rank 2, the trace has ranks 0 to 1"):
        bubbles(pipeline(), stages=[[2]])


def filled() -> Trace:
    """Ranks 0 and 1 alike, with a momentary peak; rank 2 with parameters only."""
    held = [(rank, 0.0, Category.PARAMETER, 4_000_000) for rank in range(3)]
    for rank in (0, 1):
        held += [(rank, 0.5, Category.ACTIVATION, 6_000_000), (rank, 0.50001, Category.ACTIVATION, 0)]
    memory = tuple(MemorySample(*sample) for sample in held)
    return Trace(3, [Event(0, Kind.COMPUTE, "compute", 0.0, 1.0)], "modelled", {}, memory)


def test_memory_has_a_panel_for_ranks_that_are_alike_and_the_line_of_capacity() -> None:
    picture = memory(filled(), capacity=16e6)
    assert [axes.get_title(loc="left") for axes in picture.axes] == ["ranks 0-1 · peak 10 MB", "rank 2 · peak 4 MB"]
    assert [axes.lines[0].get_ydata()[0] for axes in picture.axes] == [16.0, 16.0]
    words = [text.get_text() for text in picture.legends[0].get_texts()]
    assert words == ["capacity 16 MB", "activations", "parameters"]
    assert "ranks 0-1 hold at most 10 MB: parameters 4 MB, activations 6 MB; rank 2 holds" in picture.alt
    # for a nearly empty GPU, the capacity is given in words
    far = memory(filled(), capacity=80e9)
    assert not far.axes[0].lines and "far above" in far.legends[0].get_texts()[0].get_text()
    assert texts(memory(Trace(2))) == {"memory was not counted"}


def test_the_shortest_peak_of_memory_is_seen() -> None:
    edges, held = columns(filled(), 0, 0.0, 1.0)
    assert held.sum(axis=0).max() == 10_000_000
    assert np.count_nonzero(held.sum(axis=0) > 4_000_000) == 1
    assert len(edges) == held.shape[1]


def test_pictures_of_memory_that_are_compared_have_the_same_scales() -> None:
    small = filled()
    large = Trace(1, [Event(0, Kind.COMPUTE, "compute", 5.0, 9.0)], "modelled", {}, (
        MemorySample(0, 5.0, Category.PARAMETER, 40_000_000),
    ))  # fmt: skip
    alone, beside, other = memory(small), memory(small, compared_with=[small, large]), memory(large)
    assert alone.axes[0].get_xlim() == (0, 1) and beside.axes[0].get_xlim() == other.axes[0].get_xlim() == (0, 4)
    assert alone.axes[0].get_ylim()[1] < beside.axes[0].get_ylim()[1] == other.axes[0].get_ylim()[1]


def test_marks_at_zero_are_whole() -> None:
    (line,) = curves([Curve("weighted", [1, 2], [0.0, 0.0])], x="ranks", y="%").axes[0].lines
    assert not line.get_clip_on()


def test_the_largest_value_of_a_dark_heat_map_is_bright() -> None:
    """Three ranks that send 1, 50 and 100 bytes: on each page the largest differs most from the page."""
    sizes = {0: 1, 1: 50, 2: 100}
    events = [
        event
        for rank, nbytes in sizes.items()
        for event in (
            Event(rank, Kind.SEND, "send", 0.0, 1.0, nbytes, (rank + 1) % 3, sequence=rank),
            Event((rank + 1) % 3, Kind.RECEIVE, "recv", 0.0, 1.0, nbytes, rank, sequence=rank),
        )
    ]
    picture = traffic_matrix(Trace(3, events))
    colours = {}
    for page, encoded in zip(("light", "dark"), picture.themed(2.0), strict=True):
        image = np.asarray(Image.open(io.BytesIO(encoded)).convert("L")).astype(int)
        height, width = image.shape
        (axes, *_) = picture.axes
        cells = [
            axes.transData.transform((destination + 0.3, source + 0.3))
            for source, destination in ((0, 1), (1, 2), (2, 0))
        ]
        scale = width / (picture.get_size_inches()[0] * picture.dpi)
        shades = [image[height - round(y * scale), round(x * scale)] for x, y in cells]
        colours[page] = [abs(shade - (255 if page == "light" else 17)) for shade in shades]
    for distances in colours.values():
        assert distances[0] < distances[1] < distances[2], colours
        assert distances[2] > 120


def test_ticks_go_as_far_as_the_longest_curve() -> None:
    measured = Curve("measured", [2.0**k for k in range(9)], [1.0] * 9, "measured")
    law = Curve("law", [2.0**k for k in range(13)], [1.0] * 13, "formula")
    axes = curves([measured, law], x="GPUs", y="images/s", log="xy").axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "4", "16", "64", "256", "1024", "4096"]
