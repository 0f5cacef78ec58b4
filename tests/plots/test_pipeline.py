"""The plot of a pipeline's schedule: blocks, their numbers, the bubble, what is kept."""

from __future__ import annotations

import pytest

from labkit.plots import pipeline

TWO_RANKS = [
    (0, 0, "forward", 0, 0),
    (1, 0, "forward", 1, 0),
    (1, 1, "forward", 0, 0),
    (2, 1, "backward", 0, 0),
    (3, 0, "backward", 0, 0),
    (3, 1, "forward", 1, 0),
    (4, 1, "backward", 1, 0),
    (5, 0, "backward", 1, 0),
]


def test_a_schedule_is_drawn_in_slots() -> None:
    picture = pipeline(TWO_RANKS, title="1F1B")
    axes = picture.axes[0]
    assert axes.get_title(loc="left") == "1F1B · 2 ranks, 2 microbatches · bubble 33%"
    assert axes.get_xlabel() == "time (slots)" and axes.get_xlim() == (0, 6)
    words = [text.get_text() for text in axes.texts]
    assert words == ["0", "1", "0", "0", "0", "1", "1", "1", "2", "1", "kept"]
    assert picture.alt == (
        "1F1B of 2 ranks, 2 microbatches. Share of the ranks' time without work: 33%. "
        "Activations kept at most, by rank: 2, 1."
    )


def test_a_run_is_drawn_in_its_own_time() -> None:
    rows = [(0.010, 0, "forward", 0, 0), (0.012, 1, "forward", 0, 0), (0.014, 0, "forward", 0, 1)]
    picture = pipeline(rows, [0.002, 0.002, 0.006])
    axes = picture.axes[0]
    assert axes.get_xlabel() == "time (ms)" and axes.get_xlim() == pytest.approx((0, 10))
    assert [text.get_text() for text in axes.texts][:3] == ["0a", "0a", "0b"]
    assert "1 microbatch · bubble 50%" in axes.get_title(loc="left")


def test_what_cannot_be_drawn_is_refused() -> None:
    for rows, seconds in (([], None), (TWO_RANKS, [1.0])):
        with pytest.raises(ValueError, match="actions must be at least one"):
            pipeline(rows, seconds)


def test_at_a_moment_the_picture_shows_what_is_kept_by_then() -> None:
    picture = pipeline(TWO_RANKS, at=3)
    assert picture.alt.endswith("After 3 slots: activations kept, by rank: 2, 0.")
    assert pipeline(TWO_RANKS, at=6).alt.endswith("kept, by rank: 0, 0.")
