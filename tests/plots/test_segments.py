"""The plot of memory against segments: the chosen run's areas, and every run's peak."""

from __future__ import annotations

import pytest

from labkit.plots import segments
from labkit.trace import Category, MemorySample, Trace


def run(peak: int) -> Trace:
    held = [(0.0, Category.PARAMETER, 1000), (0.1, Category.ACTIVATION, peak - 1000), (0.4, Category.ACTIVATION, 0)]
    return Trace(1, clock="modelled", memory=[MemorySample(0, *sample) for sample in held])


RUNS = {1: run(9000), 4: run(5000), 16: run(8000)}


def test_every_peak_has_its_point_and_the_chosen_one_is_filled() -> None:
    left, right = segments(RUNS, 4, "Sixteen layers").axes
    points = {line.get_xdata()[0]: line for line in right.lines[1:]}  # type: ignore[index]
    assert {x: line.get_ydata()[0] for x, line in points.items()} == {1: 9.0, 4: 5.0, 16: 8.0}  # type: ignore[index]
    assert [x for x, line in points.items() if line.get_markerfacecolor() != "white"] == [4]
    assert left.get_title(loc="left") == "4 segments · peak 5 kB"
    assert left.get_ylim() == right.get_ylim() and left.get_ylabel() == "bytes held (kB)"


def test_words_say_what_the_picture_shows() -> None:
    assert segments(RUNS, 4, "Sixteen layers").alt == (
        "Sixteen layers: what rank 0 holds over time, cut into 4 segments, beside the peaks of 1, 4, 16. "
        "Peaks: 9 kB in 1, 5 kB in 4, 8 kB in 16."
    )


def test_what_cannot_be_drawn_is_named() -> None:
    with pytest.raises(ValueError, match="one of 1, 4, 16, got 3"):
        segments(RUNS, 3)
    with pytest.raises(ValueError, match="must have memory of rank 0"):
        segments({1: Trace(1)}, 1)
