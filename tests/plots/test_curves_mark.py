"""The reader's prediction in a picture of curves."""

from __future__ import annotations

from labkit.plots import Curve, Picture, curves

SERIES = [Curve("ring", [2, 4], [1.0, 1.5])]


def lines_across(picture: Picture) -> list[float]:
    return [line.get_ydata()[0] for line in picture.axes[0].lines if list(line.get_xdata()) == [0, 1]]


def test_a_prediction_is_a_line_across_with_its_label_and_in_the_alternative_text() -> None:
    picture = curves(SERIES, "ranks", "ms", mark=12.0)
    assert lines_across(picture) == [12.0]
    assert [text.get_text() for text in picture.axes[0].texts] == ["your prediction"]
    assert picture.axes[0].get_ylim()[1] > 12
    assert picture.alt.endswith(" Your prediction: 12.")


def test_without_a_prediction_the_picture_is_as_before() -> None:
    picture = curves(SERIES, "ranks", "ms", mark=None)
    assert not lines_across(picture) and not picture.axes[0].texts
    assert "prediction" not in picture.alt


def test_a_prediction_that_a_logarithmic_axis_cannot_show_is_left_out() -> None:
    assert not lines_across(curves(SERIES, "ranks", "ms", log="xy", mark=-1.0))
