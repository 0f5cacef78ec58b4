"""The plot of peaks: a bar for each run, as high as its fullest rank's memory."""

from __future__ import annotations

import pytest

from labkit.plots import palette, peaks
from labkit.trace import Category, MemorySample, Trace


def held(*samples: tuple[int, Category, int]) -> Trace:
    rows = tuple(MemorySample(rank, float(i), category, nbytes) for i, (rank, category, nbytes) in enumerate(samples))
    return Trace(world_size=2, clock="modelled", events=(), memory=rows)


SMALL = held((0, Category.PARAMETER, 1_000_000), (1, Category.PARAMETER, 500_000))
LARGE = held((1, Category.PARAMETER, 1_000_000), (1, Category.ACTIVATION, 3_000_000), (0, Category.GRADIENT, 2_000_000))


def test_bars_are_stacked_by_category_and_as_high_as_the_fullest_rank() -> None:
    (axes,) = peaks({"1": SMALL, "8": LARGE}, x="microbatches").axes
    bars = [
        (round(bar.get_x() + bar.get_width() / 2), round(bar.get_y(), 3), round(bar.get_height(), 3))
        for bar in axes.patches
        if bar.get_height()
    ]
    assert sorted(bars) == [(0, 0.0, 1.0), (1, 0.0, 1.0), (1, 1.0, 3.0)]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "8"]
    assert [text.get_text() for text in axes.texts] == ["1 MB", "4 MB"]
    assert axes.get_ylabel() == "bytes of the fullest rank (MB)"


def test_the_line_of_capacity_is_there_where_a_run_comes_near_it() -> None:
    (near,) = peaks({"1": SMALL}, x="steps", capacity=2e6).axes
    assert [line.get_color() for line in near.lines] == [palette.CAPACITY]
    (far,) = peaks({"1": SMALL}, x="steps", capacity=80e9).axes
    assert not far.lines


def test_words_say_what_the_picture_shows() -> None:
    picture = peaks({"1": SMALL, "8": LARGE}, x="microbatches", capacity=16e9, title="Flat")
    assert picture.alt == (
        "Flat, by category, over microbatches. 1: 1 MB, of it parameters 1 MB; "
        "8: 4 MB, of it parameters 1 MB, activations 3 MB. The capacity is 16 GB."
    )


def test_runs_without_memory_are_named() -> None:
    with pytest.raises(ValueError, match="got none in 'one'"):
        peaks({"one": held()}, x="runs")
    with pytest.raises(ValueError, match="a run to draw"):
        peaks({}, x="runs")
