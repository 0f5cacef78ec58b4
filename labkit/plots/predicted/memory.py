"""Predicted memory of the fullest rank: a bar per prediction, by category, and the GPU's capacity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from matplotlib.lines import Line2D

from labkit.plots import palette
from labkit.plots.picture import Picture
from labkit.plots.predicted.bars import HEIGHT, Part, stacked, swatches
from labkit.units import size

if TYPE_CHECKING:
    from labkit.predict import Prediction


def predicted_memory(predictions: Mapping[str, Prediction], title: str = "") -> Picture:
    """Draw each prediction's memory on its fullest stage, stacked by category, against the GPU's capacity.

    Keys of `predictions` name the bars. Raises ValueError without predictions.
    """
    if not predictions:
        raise ValueError("predictions must have one to draw, got none")
    rows = {
        name: {category: nbytes / 1e9 for category, nbytes in made.memory.categories().items()}
        for name, made in predictions.items()
    }
    used = [name for name in palette.HELD if any(row[name] for row in rows.values())]
    parts = [Part(name, palette.HELD[name]) for name in used]
    picture, axes = stacked(rows, parts, _describe(predictions, title))
    limits = [made.memory_gb for made in predictions.values()]
    line: dict[str, Any] = {"color": palette.CAPACITY, "linewidth": 2.2}
    highest = max(*limits, *(sum(row.values()) for row in rows.values()))
    for place, (row, limit, made) in enumerate(zip(rows.values(), limits, predictions.values(), strict=True)):
        axes.plot([limit, limit], [place - 0.72 * HEIGHT, place + 0.72 * HEIGHT], **line)
        held = sum(row.values())
        words = size(1e9 * held) + ("" if made.fits else ", does not fit")
        # the label goes behind the line if there is no room before it
        after = limit if held <= limit < held + 0.2 * highest else held
        axes.annotate(words, (after, place), (5, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_xlim(0, 1.3 * highest)
    axes.set_xlabel("memory of the fullest rank, predicted (GB)")
    axes.set_title(title or "What a rank holds", loc="left", fontsize=11)
    capacity = Line2D(
        [], [], label=f"capacity of {' and '.join(dict.fromkeys(map(_gpu, predictions.values())))}", **line
    )
    picture.legend(handles=[*swatches(parts), capacity], loc="outside right upper", frameon=False, fontsize=9)
    return picture


def _gpu(made: Prediction) -> str:
    return f"{made.memory_gb:g} GB"


def _describe(predictions: Mapping[str, Prediction], title: str) -> str:
    bars = [
        f"{name}: {size(sum(held.values()))} of {_gpu(made)}, of it "
        + ", ".join(f"{category} {size(nbytes)}" for category, nbytes in held.items() if nbytes)
        + ("" if made.fits else "; it does not fit")
        for name, made in predictions.items()
        for held in [made.memory.categories()]
    ]
    return f"{title or 'What a rank holds'}, predicted, by category. {'; '.join(bars)}.".replace("\n", " ")
