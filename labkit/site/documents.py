"""Pages from Markdown: `docs/`, the README, the phases' guidelines."""

from __future__ import annotations

from collections.abc import Iterator

from labkit.catalogue import all_exercises, root
from labkit.site.places import place, rewrite


def pages(linked: set[str]) -> Iterator[tuple[str, str]]:
    """Each page's path on the site, and its text. Adds the repository paths that pages link to to `linked`."""
    for path in documents():
        page = place(path)
        assert page is not None, path
        yield f"{page}.md", rewrite((root() / path).read_text(), path, page, linked.add)


def documents() -> list[str]:
    """Repository paths of all documents that have a page."""
    phases = dict.fromkeys(exercise.phase for exercise in all_exercises())
    written = sorted(f"docs/{path.name}" for path in (root() / "docs").glob("*.md"))
    return ["README.md", "CONTRIBUTING.md", *written, *(f"templates/{phase}/README.md" for phase in phases)]
