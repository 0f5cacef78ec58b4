"""The plot of peaks: a bar for each run, as long as its fullest rank's memory."""

from __future__ import annotations

import pytest

from labkit.plots import Picture, palette, peaks
from labkit.trace import Category, MemorySample, Trace


def held(*samples: tuple[int, Category, int]) -> Trace:
    rows = tuple(MemorySample(rank, float(i), category, nbytes) for i, (rank, category, nbytes) in enumerate(samples))
    return Trace(world_size=2, clock="modelled", events=(), memory=rows)


SMALL = held((0, Category.PARAMETER, 1_000_000), (1, Category.PARAMETER, 500_000))
LARGE = held((1, Category.PARAMETER, 1_000_000), (1, Category.ACTIVATION, 3_000_000), (0, Category.GRADIENT, 2_000_000))


def texts(picture: Picture) -> list[str]:
    (axes,) = picture.axes
    return [text.get_text() for text in axes.texts]


def test_bars_are_stacked_by_category_and_as_long_as_the_fullest_rank() -> None:
    (axes,) = peaks({"1": SMALL, "8": LARGE}, label="microbatches").axes
    bars = [
        (round(bar.get_y() + bar.get_height() / 2), round(bar.get_x(), 3), round(bar.get_width(), 3))
        for bar in axes.patches
        if bar.get_width()
    ]
    assert sorted(bars) == [(0, 0.0, 1.0), (1, 0.0, 1.0), (1, 1.0, 3.0)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "8"]
    assert axes.get_xlabel() == "bytes of the fullest rank (MB)" and axes.get_ylabel() == "microbatches"


def test_parts_are_labelled_where_they_have_room_or_beside_the_bar() -> None:
    assert texts(peaks({"8": LARGE}, label="microbatches")) == ["parameters 1 MB", "activations 3 MB", "4 MB"]
    small = held((0, Category.PARAMETER, 1_000_000), (0, Category.GRADIENT, 700_000), (0, Category.OTHER, 10))
    large = held((0, Category.ACTIVATION, 40_000_000))
    # 10 bytes are not worth a word
    assert texts(peaks({"1": small, "8": large}, label="microbatches")) == [
        "1.7 MB", "parameters 1 MB, gradients 700 kB", "activations 40 MB", "40 MB"
    ]  # fmt: skip
    # beside a bar that almost fills its room there is no room for a list
    tight = held((0, Category.PARAMETER, 38_000_000), (0, Category.GRADIENT, 2_000_000))
    assert texts(peaks({"1": tight}, label="microbatches", capacity=42e6))[1:] == ["parameters 38 MB", "40 MB"]


def test_the_line_of_capacity_is_there_where_a_run_comes_near_it() -> None:
    (near,) = peaks({"1": SMALL}, label="steps", capacity=2e6).axes
    assert [line.get_color() for line in near.lines] == [palette.CAPACITY]
    assert near.texts[0].get_text() == "capacity 2 MB"
    (far,) = peaks({"1": SMALL}, label="steps", capacity=80e9).axes
    assert not far.lines


def test_words_say_what_the_picture_shows() -> None:
    picture = peaks({"1": SMALL, "8": LARGE}, label="microbatches", capacity=16e9, title="Flat")
    assert picture.alt == (
        "Flat, by category, over microbatches. 1: 1 MB, of it parameters 1 MB; "
        "8: 4 MB, of it parameters 1 MB, activations 3 MB. The capacity is 16 GB."
    )


def test_runs_without_memory_are_named() -> None:
    with pytest.raises(ValueError, match="got none in 'one'"):
        peaks({"one": held()}, label="runs")
    with pytest.raises(ValueError, match="a run to draw"):
        peaks({}, label="runs")
