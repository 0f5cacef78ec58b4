"""Contents of plots of predictions: widths of bars, marks, lines, texts. Their appearance was reviewed by eye."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
from matplotlib.axes import Axes

from labkit.hardware import topology
from labkit.plots import beside_measured, layouts, palette, predicted_memory, predicted_scaling, predicted_step
from labkit.plots.picture import Picture
from labkit.plots.predicted.live import live
from labkit.predict import Plan, Prediction, model, predict, scaling, search
from labkit.units import duration

CLUSTER = topology("dgx-a100", nnodes=2)
GPT = model("gpt-1.3b")
PIPELINE = predict(GPT, Plan(64, 2, 4, 2, 2, sequence_parallel=True), CLUSTER)
FULL = predict(GPT, Plan(64, 2, 4, 2, 2, sequence_parallel=True, recompute="full"), CLUSTER)
LARGE = predict(model("gpt-13b"), Plan(64, 2, 16), CLUSTER)


def widths(axes: Axes, place: int) -> list[float]:
    return [bar.get_width() for bar in axes.patches if round(bar.get_y() + bar.get_height() / 2) == place]


def labels(picture: Picture) -> list[str]:
    return [text.get_text() for legend in picture.legends for text in legend.get_texts()]


def test_a_step_is_stacked_by_term_and_ends_where_it_ends() -> None:
    picture = predicted_step({"kept": PIPELINE, "recomputed": FULL})
    (axes,) = picture.axes
    for place, made in enumerate((PIPELINE, FULL)):
        assert sum(widths(axes, place)) == pytest.approx(made.step_seconds * 1e3 ** (made.step_seconds < 1))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["kept", "recomputed"]
    assert "predicted" in axes.get_xlabel()
    assert {"forward", "backward", "recomputation", "tensor parallel", "bubble"} < {*labels(picture)}
    # terms of a kind share its colour and differ in hatch
    looks = [(bar.get_facecolor(), bar.get_hatch()) for bar in axes.patches if bar.get_width()]
    assert len({*looks}) == len(labels(picture)) > len({colour for colour, _ in looks})


def test_memory_is_stacked_against_the_capacity() -> None:
    picture = predicted_memory({"small": PIPELINE, "large": LARGE})
    (axes,) = picture.axes
    for place, made in enumerate((PIPELINE, LARGE)):
        assert sum(widths(axes, place)) == pytest.approx((made.memory.total + made.memory.reserved) / 1e9)
    assert [line.get_xdata()[0] for line in axes.lines] == [80, 80]
    said = [text.get_text() for text in axes.texts]
    assert "does not fit" not in said[0] and said[1].endswith("does not fit")
    assert "capacity of 80 GB" in labels(picture) and "it does not fit" in picture.alt


def test_scaling_has_efficiency_and_cost() -> None:
    points = scaling(GPT, PIPELINE.plan, CLUSTER, [1, 2, 4], weak=True)
    picture = predicted_scaling({"weak": points}, samples=1e6, dollars_per_gpu_hour=2.0)
    efficiency, cost = picture.axes
    assert list(efficiency.lines[0].get_ydata()) == pytest.approx([100 * point.efficiency for point in points])
    hours = [1e6 / point.samples_per_second / 3600 for point in points]
    assert list(cost.lines[0].get_xdata()) == pytest.approx(hours)
    assert list(cost.lines[0].get_ydata()) == pytest.approx([16 * hours[0], 32 * hours[1], 64 * hours[2]])
    assert (cost.get_xlabel(), cost.get_ylabel()) == ("hours for 1,000,000 samples", "dollars")
    assert predicted_scaling({"weak": points}, samples=1e6).axes[1].get_ylabel() == "GPU hours"


def test_layouts_are_marks_and_those_that_are_out_say_why() -> None:
    made = search(model("gpt-6.7b"), 32, topology("dgx-a100"))
    picture = layouts(made)
    (axes,) = picture.axes
    marks = [marks for marks in axes.collections if len(marks.get_offsets())]
    out_of_memory = sum(rejected.made is not None for rejected in made.rejected)
    assert out_of_memory and sum(len(m.get_offsets()) for m in marks) == len(made.found) + out_of_memory
    best = made.best
    capacity, ring = axes.lines
    assert capacity.get_xdata()[0] == 80 and ring.get_ydata()[0] == best.step_seconds
    assert any(label.startswith(f"best: {duration(best.step_seconds)}\n") for label in labels(picture))
    said = picture._supxlabel.get_text()  # type: ignore[attr-defined]  # matplotlib 3.11 has no public way
    for why, number in made.reasons():
        assert f"{number} out, such as: {why}" in said
    assert sum(number for _, number in made.reasons()) == len(made.rejected)


def test_layouts_of_which_none_fits_are_drawn_too() -> None:
    made = search(model("gpt-39b"), 8, topology("dgx-a100"), recompute="full")
    assert not made.found
    assert "None fits into 80 GB" in layouts(made).alt


def test_predictions_beside_measurements_have_a_band_and_their_errors() -> None:
    picture = beside_measured({"one": [(1.0, 1.1), (2.0, 1.8)], "two": [(4.0, 6.0)]}, band=0.2)
    (axes,) = picture.axes
    ratios = [offset[1] for marks in axes.collections for offset in marks.get_offsets()]
    assert ratios == pytest.approx([1.1, 0.9, 1.5])
    assert labels(picture) == [
        "within 20%", "one\n2 runs: 10.0% off, bias +0.0%", "two\n1 run: 50.0% off, bias +50.0%",
    ]  # fmt: skip
    assert "two: 1 run, 0 within 20%" in picture.alt


@pytest.mark.parametrize("draw", [predicted_step, predicted_memory, lambda made: predicted_scaling(made, 1)])
def test_nothing_to_draw_is_said(draw: object) -> None:
    with pytest.raises(ValueError, match="got none"):
        draw({})  # type: ignore[operator]


def rectangles(shown: str) -> list[dict[str, float]]:
    """Return the widths of bars by colour for each picture of `live`."""
    found = []
    for svg in re.findall(r"<svg.*?</svg>", shown):
        bars: dict[str, float] = {}
        for bar in ElementTree.fromstring(svg).iter("rect"):
            bars[bar.attrib["fill"]] = bars.get(bar.attrib["fill"], 0) + float(bar.attrib["width"])
        found.append(bars)
    return found


@pytest.mark.parametrize("made", [PIPELINE, LARGE], ids=["fits", "does not fit"])
def test_the_pictures_under_sliders_are_as_long_as_what_is_predicted(made: Prediction) -> None:
    shown = live(made, {"batch grows": scaling(made.model, made.plan, CLUSTER, [1, 2, 4], weak=True)})
    step, memory, curve = rectangles(shown)
    for kind, colour in palette.STEP.items():
        assert step.get(colour, 0) == pytest.approx(760 * made.seconds(kind) / made.step_seconds, abs=0.1)
    held = made.memory.categories()
    whole = 1.02 * max(80e9, sum(held.values()))
    for category, colour in palette.HELD.items():
        assert memory.get(colour, 0) == pytest.approx(760 * held[category] / whole, abs=0.1)
    assert not curve and ("does not fit" in shown) == (not made.fits)
    assert shown.count("role='img'") == shown.count("aria-label=") == 3


@pytest.mark.parametrize("longest", [0.5, 3.0, 40.0, 220.0])
def test_numbers_below_measured_times_do_not_touch(longest: float) -> None:
    picture = beside_measured(
        {"a source with a long name, so that the axes are narrow": [(0.05, 0.05), (longest, longest)]}
    )
    picture.draw_without_rendering()
    (axes,) = picture.axes
    low, high = axes.get_xlim()
    shown = [
        label.get_window_extent()
        for at, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        if low <= at <= high
    ]
    assert len(shown) >= 2 and all(left.x1 < right.x0 for left, right in pairwise(shown))
