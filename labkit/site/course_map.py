"""The course map: every exercise with its time, points and what it builds on; a diagram, and the same as tables."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from labkit.catalogue import Exercise, exercises_in, find, root
from labkit.progress.course import phase_title

WIDTH, HEIGHT = 184, 58
"""Size of an exercise's box, in the diagram's units."""
GAP, ROW_GAP, HEADING = 12, 46, 34
COLUMNS = 4


def page() -> str:
    """Return the page as Markdown."""
    exercises = exercises_in(root())
    hours = sum(exercise.entry.minutes for exercise in exercises) / 60
    points = sum(exercise.entry.points for exercise in exercises)
    lines = [
        "# Course map",
        "",
        f"{len(exercises)} exercises in {len(_phases())} phases, {hours:.0f} hours and {points:g} points in all. Most "
        "need nothing of the others: an arrow leads from an exercise to those whose modules import it, and where yours "
        "does not pass its checks yet, they run on the course's solution. Point at an exercise to see its arrows.",
        "",
        "```{raw} html",
        _diagram(),
        "```",
        "",
    ]
    seen = _what_you_see()
    for phase, members in _phases().items():
        minutes = sum(exercise.entry.minutes for exercise in members)
        lines += [
            f"## {phase_title(phase)}",
            "",
            f"{minutes / 60:.1f} hours, {sum(exercise.entry.points for exercise in members):g} points. "
            f"[Guidelines](phases/{phase}.md): what to build in which order.",
            "",
            "| exercise | you write, and see | builds on | minutes | points |",
            "|---|---|---|--:|--:|",
        ]
        lines += [_row(exercise, seen.get(exercise.short_name, "")) for exercise in members]
        lines += ["", *_contents(phase, members), ""]
    return "\n".join(lines)


def _phases() -> dict[str, list[Exercise]]:
    by_phase: dict[str, list[Exercise]] = {}
    for exercise in exercises_in(root()):
        by_phase.setdefault(exercise.phase, []).append(exercise)
    return by_phase


def _row(exercise: Exercise, seen: str) -> str:
    entry = exercise.entry
    earlier = ", ".join(f"{_link(find(name), f'{find(name).entry.number:02}')}" for name in entry.builds_on)
    return f"| {_link(exercise, exercise.label)} | {seen} | {earlier} | {entry.minutes} | {entry.points:g} |"


def _link(exercise: Exercise, text: str) -> str:
    return f"[{text}](notebooks/{exercise.notebook_name})"


def _contents(phase: str, members: list[Exercise]) -> list[str]:
    entries = [f"phases/{phase}", *(f"notebooks/{exercise.notebook_name[:-6]}" for exercise in members)]
    return ["```{toctree}", ":hidden:", f":caption: {phase_title(phase)}", "", *entries, "```"]


def _what_you_see() -> dict[str, str]:
    """Short name of each exercise in the README's table, and the text of its row."""
    rows = re.findall(r"^\|.*\| `(\w+)` \| (.+) \|$", (root() / "README.md").read_text(), re.MULTILINE)
    return dict(rows)


def _diagram() -> str:
    places: dict[str, tuple[float, float]] = {}
    boxes: list[str] = []
    top = 0.0
    for phase, members in _phases().items():
        boxes.append(f'<text class="phase" x="0" y="{top + 20:g}">{html.escape(phase_title(phase))}</text>')
        top += HEADING
        for at, exercise in enumerate(members):
            row, column = divmod(at, COLUMNS)
            x, y = column * (WIDTH + GAP), top + row * (HEIGHT + ROW_GAP)
            places[exercise.short_name] = x, y
            boxes.append(_box(exercise, x, y))
        top += ((len(members) - 1) // COLUMNS + 1) * (HEIGHT + ROW_GAP)
    width, height = COLUMNS * (WIDTH + GAP), top - ROW_GAP + 6
    arrows = [
        _arrow(places, earlier, exercise) for exercise in exercises_in(root()) for earlier in exercise.entry.builds_on
    ]
    return "\n".join(
        [
            '<div class="course-map" tabindex="0" role="group" aria-label="What builds on what; the tables below hold '
            'the same">',
            f"<style>{''.join(_highlights())}</style>",
            f'<svg viewBox="-4 0 {width + 8:g} {height:g}" xmlns="http://www.w3.org/2000/svg">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0 8 4 0 8z"/></marker></defs>',
            *arrows,
            *boxes,
            "</svg>",
            "</div>",
        ]
    )


def _box(exercise: Exercise, x: float, y: float) -> str:
    entry = exercise.entry
    lines = list(_wrapped(exercise.label))
    texts = [
        f'<text x="{x + 10:g}" y="{y + 19 + 15 * at - (7 if len(lines) == 1 else 0) + 7 * (len(lines) == 1):g}">'
        f"{html.escape(line)}</text>"
        for at, line in enumerate(lines)
    ]
    return (
        f'<a class="box {exercise.short_name}" href="notebooks/{exercise.notebook_name[:-6]}.html">'
        f"<title>{html.escape(exercise.label)}</title>"
        f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>{"".join(texts)}'
        f'<text class="small" x="{x + 10:g}" y="{y + HEIGHT - 8:g}">'
        f"{entry.minutes} min, {entry.points:g} points</text></a>"
    )


def _wrapped(label: str, letters: int = 25) -> Iterator[str]:
    """Two lines at most."""
    if len(label) <= letters:
        yield label
        return
    cut = label.rfind(" ", 0, letters)
    rest = label[cut + 1 :]
    yield label[:cut]
    yield rest if len(rest) <= letters + 2 else f"{rest[: rest.rfind(' ', 0, letters)]} …"


def _arrow(places: dict[str, tuple[float, float]], earlier: str, exercise: Exercise) -> str:
    (x0, y0), (x1, y1) = places[earlier], places[exercise.short_name]
    classes = f"arrow from-{earlier} to-{exercise.short_name}"
    if y0 == y1:  # same row: over the top
        start, end = x0 + WIDTH * 0.8, x1 + WIDTH * 0.2
        path = f"M{start:g} {y0:g}C{start:g} {y0 - 26:g} {end:g} {y1 - 26:g} {end:g} {y1 - 3:g}"
    else:
        start, end, low = x0 + WIDTH / 2, x1 + WIDTH / 2, y0 + HEIGHT
        bend = min(60.0, (y1 - low) / 2)
        path = f"M{start:g} {low:g}C{start:g} {low + bend:g} {end:g} {y1 - bend:g} {end:g} {y1 - 3:g}"
    named = f"{exercise.entry.number:02} imports {find(earlier).label}"
    return f'<path class="{classes}" d="{path}" marker-end="url(#tip)"><title>{html.escape(named)}</title></path>'


def _highlights() -> Iterator[str]:
    """Rules that bring out the arrows of the exercise that one points at."""
    for exercise in exercises_in(root()):
        name = exercise.short_name
        for state in ("hover", "focus-visible"):
            yield f"svg:has(.{name}:{state}) :is(.to-{name},.from-{name}){{stroke-width:2.5;opacity:1}}"
