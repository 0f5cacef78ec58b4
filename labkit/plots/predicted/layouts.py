"""All layouts that a search tried: step time, memory per rank, and why some are rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from labkit.plots import palette
from labkit.plots.picture import Picture
from labkit.units import count, duration

if TYPE_CHECKING:
    from labkit.predict import Prediction
    from labkit.predict.search import Search

MOST_REASONS = 6
_LOOKS = {
    "full": ("s", 16, palette.SERIES[2]),
    "selective": ("^", 44, palette.SERIES[4]),
    "none": ("o", 12, palette.SERIES[0]),
}
"""Marker, size and colour by recomputation, which trades time for memory; later ones are drawn on top."""


def layouts(search: Search, title: str = "") -> Picture:
    """Draw each layout's step time over its memory, hollow if it does not fit, with the reasons for rejection below.

    Raises ValueError for a search in which no layout could be predicted.
    """
    out = [rejected.made for rejected in search.rejected if rejected.made is not None]
    tried = [*search.found, *out]
    if not tried:
        raise ValueError("the search must have a layout that can be predicted, got none")
    limit = min(made.memory_gb for made in tried)
    reasons = search.reasons()
    reason_lines = [f"{number:,} out, such as: {why}" for why, number in reasons[:MOST_REASONS]]
    if len(reasons) > MOST_REASONS:
        reason_lines.append(f"{sum(number for _, number in reasons[MOST_REASONS:]):,} out for other reasons")
    picture = Picture(height=3.7 + 0.17 * len(reason_lines), alt=_describe(search, limit, title))
    axes = picture.add_subplot()
    what = title or f"{tried[0].model.name} on {count(tried[0].plan.ranks, 'GPU')}"
    numbers = f"{count(len(search.found), 'layout')} possible, {len(search.rejected):,} out"
    axes.set_title(f"{what} · {numbers}", loc="left", fontsize=11)
    _scatter(axes, search.found, filled=True)
    _scatter(axes, out, filled=False)
    line: dict[str, Any] = {"color": palette.CAPACITY, "linewidth": 1.6, "linestyle": "--"}
    axes.axvline(limit, **line)
    _scales(axes)
    handles = [*_legend(tried, bool(out)), Line2D([], [], label=f"capacity {limit:g} GB", **line)]
    if search.found:
        best = search.found[0]
        ring: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": "black", "markeredgewidth": 1.6}
        axes.plot(held_gb(best), best.step_seconds, "o", markersize=11, **ring)
        said_of_best = f"best: {duration(best.step_seconds)}\n" + layout_words(best).replace(", ", "\n")
        handles.insert(0, Line2D([], [], linestyle="", marker="o", markersize=11, label=said_of_best, **ring))
    picture.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9)
    picture.supxlabel("\n".join(reason_lines), x=0.01, ha="left", fontsize=8.5)
    return picture


def held_gb(made: Prediction) -> float:
    return (made.memory.total + made.memory.reserved) / 1e9


def layout_words(made: Prediction) -> str:
    """Format as `data 4, tensor 8, ZeRO 1`, without axes of size 1."""
    plan = made.plan
    axes = {"data": plan.data, "tensor": plan.tensor, "pipeline": plan.pipeline, "context": plan.context}
    words = [f"{name} {ranks}" for name, ranks in axes.items() if ranks > 1] or ["one GPU"]
    if plan.chunks > 1:
        words.append(f"{plan.chunks} chunks")
    if plan.zero:
        words.append(f"ZeRO {plan.zero}")
    return ", ".join([*words, f"microbatch {plan.microbatch}"])


def _scatter(axes: Axes, made: list[Prediction] | tuple[Prediction, ...], *, filled: bool) -> None:
    for how, (mark, area, colour) in _LOOKS.items():
        of = [case for case in made if case.plan.recompute == how]
        face = colour if filled else "none"
        axes.scatter(
            [held_gb(case) for case in of], [case.step_seconds for case in of], area, marker=mark, facecolors=face,
            edgecolors=colour, linewidths=0.7, alpha=0.6,
        )  # fmt: skip


def _scales(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(10, (1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("memory of the fullest rank, predicted (GB)")
    axes.set_ylabel("time of a step, predicted (s)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=palette.GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def _legend(tried: list[Prediction], some_out: bool) -> list[Line2D]:
    used = {prediction.plan.recompute for prediction in tried}
    handles = [
        Line2D([], [], linestyle="", marker=mark, color=colour, label=f"recompute {how}")
        for how, (mark, _, colour) in _LOOKS.items()
        if how in used
    ]
    if some_out:
        handles.append(
            Line2D([], [], linestyle="", marker="o", color=palette.NOTE, markerfacecolor="none", label="no room")
        )
    return handles


def _describe(search: Search, limit: float, title: str) -> str:
    text = f"{title or 'All layouts'}: time of a step over memory of the fullest rank, predicted. "
    if search.found:
        best = search.found[0]
        text += f"The best of {len(search.found)} takes {duration(best.step_seconds)} and {held_gb(best):.3g} GB of "
        text += f"{limit:g}: {layout_words(best)}, recompute {best.plan.recompute}. "
    else:
        text += f"None fits into {limit:g} GB. "
    return text + "; ".join(f"{number} out, such as: {why}" for why, number in search.reasons()) + "."
