"""Predicted steps, term by term: a bar per prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from labkit.plots import palette
from labkit.plots.picture import Picture
from labkit.plots.predicted.bars import Part, stacked, swatches
from labkit.units import duration, time_unit

if TYPE_CHECKING:
    from labkit.predict import Prediction

LEAST = 0.005
"""Share of a step below which, in every bar, terms are drawn as one."""
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "+++", "ooo")
_REST = f"all terms under {LEAST:.1%}"


def predicted_step(predictions: Mapping[str, Prediction], title: str = "") -> Picture:
    """Draw each prediction's step, stacked by term; a term has the colour of its kind and its own hatch.

    Keys of `predictions` name the bars. Raises ValueError without predictions.
    """
    if not predictions:
        raise ValueError("predictions must have one to draw, got none")
    parts = _parts(list(predictions.values()))
    shown = {part.name for part in parts}
    rows = {}
    for name, made in predictions.items():
        terms = made.breakdown()
        rows[name] = {term: seconds for term, seconds in terms.items() if term in shown}
        rows[name][_REST] = sum(seconds for term, seconds in terms.items() if term not in shown)
    longest = max(made.step_seconds for made in predictions.values())
    unit, unit_seconds = time_unit(longest)
    scaled = {name: {term: s / unit_seconds for term, s in terms.items()} for name, terms in rows.items()}
    picture, axes = stacked(scaled, parts, _describe(predictions, title))
    for place, made in enumerate(predictions.values()):
        axes.annotate(
            duration(made.step_seconds), (made.step_seconds / unit_seconds, place), (4, 0),
            textcoords="offset points", va="center", fontsize=9,
        )  # fmt: skip
    axes.set_xlim(0, 1.14 * longest / unit_seconds)
    axes.set_xlabel(f"time of a step, predicted ({unit})")
    axes.set_title(title or "What a step is made of", loc="left", fontsize=11)
    picture.legend(handles=swatches(parts), loc="outside right upper", frameon=False, fontsize=9, handleheight=1.1)
    return picture


def _parts(predictions: Sequence[Prediction]) -> list[Part]:
    """Return a part for each term that is large enough, by kind, and one for all others."""
    parts: list[Part] = []
    for kind, colour in palette.STEP.items():
        names = dict.fromkeys(term.name for made in predictions for term in made.terms if term.kind == kind)
        large = [name for name in names if any(m.seconds(name) >= LEAST * m.step_seconds for m in predictions)]
        parts += [Part(name, colour, _HATCHES[index % len(_HATCHES)]) for index, name in enumerate(large)]
    shown = {part.name for part in parts}
    if any(name not in shown for made in predictions for name in made.breakdown()):
        parts.append(Part(_REST, palette.PATH))
    return parts


def _describe(predictions: Mapping[str, Prediction], title: str) -> str:
    steps = [
        f"{name}: {duration(made.step_seconds)}, of it "
        + ", ".join(f"{term} {duration(seconds)}" for term, seconds in made.breakdown().items())
        for name, made in predictions.items()
    ]
    return f"{title or 'What a step is made of'}, predicted. {'; '.join(steps)}.".replace("\n", " ")
