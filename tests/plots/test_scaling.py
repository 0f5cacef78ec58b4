"""The picture of a scaling study shows every point."""

from __future__ import annotations

import pytest

from labkit.course.phase4_production.scaling_study.given import Measurement, ScalingPoint
from labkit.plots import scaling_study


def points(*efficiencies: float) -> list[ScalingPoint]:
    return [
        ScalingPoint("weak", Measurement("real", "ddp", 2**place, 4, (1 / own,), (0.5,)), own)
        for place, own in enumerate(efficiencies)
    ]


@pytest.mark.parametrize(("efficiencies", "top"), [((1.0, 0.8), 106), ((1.0, 4.0, 0.5), 424)])
def test_an_efficiency_above_1_is_within_the_axes(efficiencies: tuple[float, ...], top: float) -> None:
    """On one rank that began slowly: its line left the axes and crossed the rest of the page."""
    picture = scaling_study(points(*efficiencies))
    axes = picture.axes[0]
    assert axes.get_ylim() == pytest.approx((0, top))
    drawn = [list(line.get_ydata()) for line in axes.get_lines()]
    assert [100 * own for own in efficiencies] in drawn


def test_without_points_there_is_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="points must have one to draw"):
        scaling_study([])
