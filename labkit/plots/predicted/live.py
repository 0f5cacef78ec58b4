"""Pictures of one prediction as SVG in HTML, made in a millisecond: for a slider, a matplotlib figure is too slow.

Step and memory are stacked bars, efficiency as GPUs are added is drawn as curves. Background and text have
JupyterLab's colours; elsewhere text is dark on white.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from labkit.plots import palette
from labkit.units import duration, size, time_unit

if TYPE_CHECKING:
    from labkit.predict import Prediction
    from labkit.predict.running import ScalingPoint

WIDTH = 760
"""Width in pixels: about that of a notebook cell."""
_BAR = 30
_LETTER = 6.6
"""Approximate width of a letter in pixels, at a font size of 12 pixels."""
_BACKGROUND, _TEXT = "var(--jp-layout-color0, #FFF)", "var(--jp-ui-font-color1, #222)"
_FAINT = "stroke='currentColor' stroke-opacity='.25'"
_DARK = {
    palette.STEP["compute"],
    palette.STEP["communication"],
    palette.HELD["parameters"],
    palette.HELD["activations"],
}
"""Colours on which text is white; on the others it is black."""
Piece = tuple[str, str, float]
"""Name, colour, amount."""


def live(made: Prediction, studies: Mapping[str, Sequence[ScalingPoint]], faded: bool = False) -> str:
    """Render `made` as HTML with a heading for each picture. studies: points of `labkit.predict.scaling` by name.

    faded: draw it pale, because it no longer matches the sliders.
    """
    look = f"max-width:{WIDTH}px;box-sizing:border-box;padding:4px 8px;background:{_BACKGROUND};color:{_TEXT}"
    pictures = f"{_step(made)}{_memory(made)}{_efficiency(made, studies)}"
    inner = f"<div style='opacity:{0.4 if faded else 1}'>{pictures}</div>"  # the page must not show through
    return f"<div style='{look};font:12px sans-serif'>{inner}</div>"


def _step(made: Prediction) -> str:
    unit, size = time_unit(made.step_seconds)
    terms = [term for term in made.terms if term.seconds > 0]
    pieces = [(t.name, palette.STEP[kind], t.seconds / size) for kind in palette.STEP for t in terms if t.kind == kind]
    kinds = []
    for kind, colour in palette.STEP.items():
        of = [term for term in terms if term.kind == kind]
        if of:
            each = ", ".join(f"{term.name} {duration(term.seconds)}" for term in of)
            share = made.seconds(kind) / made.step_seconds
            kinds.append((colour, f"<b>{kind} {share:.1%}</b>: {html.escape(each)}"))
    caption = f"time of a step, predicted: {duration(made.step_seconds)}"
    return _heading(caption) + _bar(pieces, made.step_seconds / size, unit, caption) + _legend(kinds)


def _memory(made: Prediction) -> str:
    held = {name: nbytes / 1e9 for name, nbytes in made.memory.categories().items() if nbytes}
    limit, total = made.memory_gb, sum(held.values())
    caption = f"memory of the fullest rank, predicted: {size(1e9 * total)} of {limit:g} GB" + (
        "" if made.fits else ": does not fit"
    )
    pieces = [(name, palette.HELD[name], gb) for name, gb in held.items()]
    legend = [(palette.HELD[name], f"{name} {size(1e9 * gb).replace(' ', '&nbsp;')}") for name, gb in held.items()]
    legend.append((palette.CAPACITY, f"capacity {limit:g}&nbsp;GB"))
    return _heading(caption) + _bar(pieces, 1.02 * max(limit, total), "GB", caption, limit) + _legend(legend, line=" ")


def _heading(text: str) -> str:
    return f"<div style='font-size:13px;margin:8px 0 2px'>{html.escape(text)}</div>"


def _bar(pieces: Iterable[Piece], whole: float, unit: str, caption: str, limit: float | None = None) -> str:
    """Draw a stacked bar over an axis from 0 to `whole`, with names where they fit, and a line at `limit`."""
    drawn, at = [], 0.0
    for name, colour, value in pieces:
        width = WIDTH * value / whole
        edge = "#999" if colour == palette.IDLE else _BACKGROUND
        drawn.append(f"<rect x='{at:.1f}' width='{width:.2f}' height='{_BAR}' fill='{colour}' style='stroke:{edge}'/>")
        if width > _LETTER * len(name) + 8:
            ink = "#FFF" if colour in _DARK else "#000"
            place = f"x='{at + width / 2:.1f}' y='{_BAR / 2 + 4:g}' text-anchor='middle' style='fill:{ink}'"
            drawn.append(f"<text {place}>{html.escape(name)}</text>")
        at += width
    if limit is not None:
        place = f"{WIDTH * limit / whole:.1f}"
        drawn.append(f"<line x1='{place}' x2='{place}' y2='{_BAR + 4}' stroke='{palette.CAPACITY}' stroke-width='3'/>")
    return _svg([*drawn, *_ticks(whole, unit)], _BAR + 18, caption)


def _ticks(whole: float, unit: str) -> list[str]:
    """Draw the axis under a bar: at most eight round numbers."""
    step = 10.0 ** math.floor(math.log10(whole))
    step *= next(part for part in (0.1, 0.2, 0.5, 1, 2) if whole / (part * step) <= 8)
    drawn = []
    for index in range(1, int(whole / step) + 1):
        x = WIDTH * index * step / whole
        if x > WIDTH - 24:
            break
        drawn.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{_BAR}' y2='{_BAR + 4}' {_FAINT}/>")
        drawn.append(
            f"<text x='{x:.1f}' y='{_BAR + 15}' font-size='11' text-anchor='middle'>{index * step:g} {unit}</text>"
        )
    return drawn


def _efficiency(made: Prediction, studies: Mapping[str, Sequence[ScalingPoint]]) -> str:
    """Draw curves over GPUs, each up to its own last point; the point set by the sliders is filled."""
    gpus = sorted({point.gpus for points in studies.values() for point in points})
    if len(gpus) < 2:
        return ""
    left, width, top, height = 46, WIDTH - 160, 8, 96

    def at(point: ScalingPoint) -> tuple[float, float]:
        along = gpus.index(point.gpus) / (len(gpus) - 1)
        return left + width * along, top + height * (1 - min(1.05, point.efficiency))

    drawn = []
    for share in (0, 0.5, 1):
        y = top + height * (1 - share)
        drawn.append(f"<line x1='{left}' x2='{left + width}' y1='{y:g}' y2='{y:g}' {_FAINT}/>")
        drawn.append(f"<text x='{left - 8}' y='{y + 4:g}' font-size='11' text-anchor='end'>{share:.0%}</text>")
    for index, count in enumerate(gpus):
        x = left + width * index / (len(gpus) - 1)
        drawn.append(f"<text x='{x:.1f}' y='{top + height + 17}' font-size='11' text-anchor='middle'>{count:,}</text>")
    drawn.append(f"<text x='{left + width + 30}' y='{top + height + 17}' font-size='11'>GPUs</text>")
    ends: list[float] = []
    halo = f"font-weight='bold' style='stroke:{_BACKGROUND}' stroke-width='4' paint-order='stroke'"
    for (name, points), colour, dashes in zip(studies.items(), palette.SERIES, ("none", "6 4", "2 3"), strict=False):
        places = [at(point) for point in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        style = f"fill='none' stroke='{colour}' stroke-width='2' stroke-dasharray='{dashes}'"
        drawn.append(f"<polyline points='{line}' {style}/>")
        for (x, y), point in zip(places, points, strict=True):
            face = colour if point.gpus == made.plan.ranks else _BACKGROUND
            drawn.append(
                f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' style='fill:{face}' stroke='{colour}' stroke-width='1.5'/>"
            )
        x, y = places[-1]
        y = next(y + by for by in (0, 14, -14, 28) if all(abs(y + by - other) >= 12 for other in ends))
        ends.append(y)
        drawn.append(f"<text x='{x + 9:.1f}' y='{y + 4:.1f}' fill='{colour}' {halo}>{html.escape(name)}</text>")
    caption = "scaling efficiency, predicted; filled: these GPUs"
    spoken = "; ".join(
        f"{name}: " + ", ".join(f"{point.efficiency:.0%} with {point.gpus} GPUs" for point in points)
        for name, points in studies.items()
    )
    return _heading(caption) + _svg(drawn, top + height + 24, f"scaling efficiency, predicted, {spoken}")


def _svg(drawn: Sequence[str], height: float, caption: str) -> str:
    return (
        f"<svg viewBox='0 0 {WIDTH} {height:g}' style='width:100%;display:block;font:12px sans-serif' "
        "fill='currentColor' "
        f"role='img' aria-label='{html.escape(caption, quote=True)}'>{''.join(drawn)}</svg>"
    )


def _legend(rows: Sequence[tuple[str, str]], line: str = "<br>") -> str:
    gap = "margin-right:12px;display:inline-block"
    box = "display:inline-block;width:10px;height:10px;border:1px solid #999;margin-right:5px"
    entries = line.join(
        f"<span style='{gap}'><span style='{box};background:{colour}'></span>{words}</span>" for colour, words in rows
    )
    return f"<div style='line-height:1.5'>{entries}</div>"
