"""Curves in panels: the same scale where the same thing is shown, the same colour for the same label."""

from __future__ import annotations

import pytest

from labkit.plots import Curve, Panel, curve_panels


def test_panels_of_the_same_quantity_have_the_same_scales() -> None:
    steps = [0, 1, 2]
    low = Panel([Curve("a", steps, [3.0, 2.0, 1.0], "measured")], "loss", heading="forgotten")
    high = Panel([Curve("a", steps, [30.0, 20.0, 10.0], "measured")], "loss", heading="called")
    rate = Panel([Curve("a", steps, [0.1, 0.2, 0.2], "formula")], "learning rate", height=1.2)
    picture = curve_panels([low, high, rate], x="step", title="Two runs")
    first, second, third = picture.axes
    assert first.get_ylim() == second.get_ylim() and first.get_ylim()[0] == 0 and first.get_ylim()[1] > 30
    assert third.get_ylim()[1] < 1
    assert first.get_xlim() == second.get_xlim() == third.get_xlim()
    assert [axes.get_title(loc="left") for axes in picture.axes] == ["forgotten", "called", ""]
    assert [axes.get_xlabel() for axes in picture.axes] == ["", "", "step"]


def test_a_label_has_the_same_colour_and_mark_in_all_panels_and_one_entry_in_the_legend() -> None:
    above = Panel([Curve("a", [1, 2], [1.0, 2.0]), Curve("b", [1, 2], [3.0, 4.0])], "ms")
    below = Panel([Curve("b", [1, 2], [1.0, 0.1])], "loss", logarithmic=True)
    picture = curve_panels([above, below], x="ranks")
    (_, b), (again,) = (axes.lines for axes in picture.axes)
    assert (b.get_color(), b.get_marker()) == (again.get_color(), again.get_marker())
    assert [axes.get_yscale() for axes in picture.axes] == ["linear", "log"]
    assert [text.get_text() for text in picture.legends[0].get_texts()] == ["a", "b", "modelled"]


def test_words_say_what_the_picture_shows() -> None:
    rate = Panel([Curve("warm-up", [0, 15], [0.1, 0.8], "formula")], "learning rate")
    loss = Panel([Curve("warm-up", [0, 15], [2.3, 0.2], "measured")], "loss", heading="what it leads to")
    assert curve_panels([rate, loss], x="step", title="A warm-up").alt == (
        "A warm-up: 2 panels over step. learning rate, warm-up, formula: 0.1 at 0 to 0.8 at 15. "
        "what it leads to, warm-up, measured: 2.3 at 0 to 0.2 at 15."
    )


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="panels must have one to draw"):
        curve_panels([], x="step")
    with pytest.raises(ValueError, match="'a' has 2 x and 1 y"):
        curve_panels([Panel([Curve("a", [1, 2], [1.0])], "ms")], x="step")
