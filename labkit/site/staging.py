"""Stage the site's pages as text: one folder that Sphinx reads. Files that did not change keep their time stamps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from labkit.catalogue import root
from labkit.site import course_map, documents, live, notebooks, page_head, reference
from labkit.site.places import COPIED, place
from labkit.site.sources import source_page

Content = str | bytes


def stage(folder: Path) -> Path:
    """Write all pages and pictures to `folder`, remove the ones that no longer exist, and return `folder`."""
    wanted = dict(_files())
    for path, content in wanted.items():
        target = folder / path
        data = content.encode() if isinstance(content, str) else content
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    for existing in sorted(folder.rglob("*"), reverse=True):
        if existing.is_file() and existing.relative_to(folder).as_posix() not in wanted:
            existing.unlink()
        elif existing.is_dir() and not any(existing.iterdir()):
            existing.rmdir()
    return folder


def _files() -> Iterator[tuple[str, Content]]:
    """Every file, by its path below the folder."""
    linked: set[str] = set()
    yield from documents.pages(linked)
    yield "course-map.md", course_map.page()
    yield from notebooks.pages(linked)
    for path in sorted(linked):
        page = place(path)
        if page is not None and page.startswith("source/"):
            yield f"{COPIED}/{page}.html", source_page(path)
    yield from reference.pages()
    yield f"{COPIED}/{page_head.PICTURE}", (root() / "docs" / "images" / "card.png").read_bytes()
    yield f"{COPIED}/live/live.js", live.script()
    yield f"{COPIED}/live/live.css", live.style()
    for picture in sorted((root() / "docs" / "images").iterdir()):
        yield f"images/{picture.name}", picture.read_bytes()
