"""Ratio of predictions to measurements, source by source, with an error band."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from labkit.plots import palette
from labkit.plots.picture import Picture
from labkit.units import count

_MARKS = "os^DvP*Xdph"


def beside_measured(
    runs: Mapping[str, Sequence[tuple[float, float]]], quantity: str = "time of a step (s)", band: float = 0.1,
    title: str = "",
) -> Picture:  # fmt: skip
    """Draw predicted / measured over measured, both axes logarithmic; `band`, a share, is shaded around 1.

    runs: pairs (measured, predicted) by source, both above 0. The legend gives each source's mean absolute error and
    mean signed error, the bias. Raises ValueError without runs.
    """
    if not any(runs.values()):
        raise ValueError("runs must have a pair to draw, got none")
    picture = Picture(height=4.2, alt=_describe(runs, quantity, band, title))
    axes = picture.add_subplot()
    axes.set_title(title or "Predicted beside measured", loc="left", fontsize=11)
    axes.axhspan(1 - band, 1 + band, color=palette.IDLE, linewidth=0, label=f"within {band:.0%}")
    axes.axhline(1, color=palette.FAINT, linewidth=1)
    for index, (source, pairs) in enumerate(runs.items()):
        mean, bias = errors(pairs)
        axes.scatter(
            [measured for measured, _ in pairs], [predicted / measured for measured, predicted in pairs],
            18, marker=_MARKS[index % len(_MARKS)], color=palette.SERIES[index % len(palette.SERIES)], alpha=0.65,
            linewidths=0, label=f"{source}\n{count(len(pairs), 'run')}: {mean:.1%} off, bias {bias:+.1%}",
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    ratios = [predicted / measured for pairs in runs.values() for measured, predicted in pairs]
    low, high = min(*ratios, 1 - 2 * band), max(*ratios, 1 + 2 * band)
    ticks = [
        t for t in (0.02, 0.05, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5) if low <= t <= high
    ]
    if high / low > 4:
        ticks = [tick for tick in ticks if tick not in (0.9, 1.1, 0.67, 1.5)]
    axes.set_yticks(ticks)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(low / (high / low) ** 0.04, high * (high / low) ** 0.04)
    times = [measured for pairs in runs.values() for measured, _ in pairs]
    # between powers of ten there is room for numbers on few decades
    axes.xaxis.set_major_locator(LogLocator(10, (1, 2, 5) if max(times) / min(times) < 1000 else (1,)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"measured {quantity}")
    axes.set_ylabel("predicted / measured")
    axes.spines[["top", "right"]].set_visible(False)
    picture.legend(loc="outside right upper", frameon=False, fontsize=8.5)
    return picture


def errors(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return mean absolute error and mean signed error of the pairs (measured, predicted), as shares."""
    signed = [predicted / measured - 1 for measured, predicted in pairs]
    return statistics.mean(map(abs, signed)), statistics.mean(signed)


def _describe(runs: Mapping[str, Sequence[tuple[float, float]]], quantity: str, band: float, title: str) -> str:
    sentences = []
    for source, pairs in runs.items():
        mean, bias = errors(pairs)
        within = sum(abs(predicted / measured - 1) <= band for measured, predicted in pairs)
        sentences.append(
            f"{source}: {count(len(pairs), 'run')}, {within} within {band:.0%}, mean error {mean:.1%}, bias {bias:+.1%}"
        )
    return f"{title or 'Predicted beside measured'}: {quantity}, by source. {'; '.join(sentences)}."
