"""Pages from Markdown: `docs/`, how to contribute, the phases' guidelines.

A picture `images/NAME.png` of the page `docs/PAGE.md`, in a paragraph of its own, becomes a live one if there is a
recording `docs/live/PAGE/NAME.json`. A line `<!-- figure: NAME -->` becomes a figure of `labkit.site.figures`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from labkit.catalogue import exercises_in, root
from labkit.site import live
from labkit.site.figures import markup
from labkit.site.places import COPIED, place, rewrite

_PICTURE = re.compile(r"^!\[[^\]]*\]\([^)\s]*?([^/)\s]+)\.png\)$", re.MULTILINE)


def pages(linked: set[str]) -> Iterator[tuple[str, str]]:
    """Each page and recording: its path on the site, and its text. Adds the repository paths that pages link to to
    `linked`.
    """
    for path in documents():
        page = place(path)
        assert page is not None, path
        text = rewrite(markup.insert((root() / path).read_text(), path), path, page, linked.add)
        recordings: dict[str, str] = {}
        yield f"{page}.md", _PICTURE.sub(functools.partial(_enliven, page=page, recordings=recordings), text)
        yield from recordings.items()


def _enliven(picture: re.Match[str], page: str, recordings: dict[str, str]) -> str:
    """The picture's Markdown, within an element that its recording brings to life; add the staged recording."""
    name = f"{page}/{picture[1]}"
    recording = live.recorded(name)
    if recording is None:
        return picture[0]
    recordings[f"{COPIED}/live/{name}.js"] = live.call(name, recording)
    return live.element(name, f"\n\n{picture[0]}\n\n", "../" * page.count("/"))


def documents() -> list[str]:
    """Repository paths of all documents that have a page."""
    phases = dict.fromkeys(exercise.phase for exercise in exercises_in(root()))
    written = sorted(f"docs/{path.name}" for path in (root() / "docs").glob("*.md"))
    return ["CONTRIBUTING.md", *written, *(f"templates/{phase}/README.md" for phase in phases)]
