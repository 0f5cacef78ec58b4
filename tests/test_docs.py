"""Links and paths in the documentation lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from labkit.catalogue import all_exercises

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """Anchors of a page's or notebook's headings, as GitHub makes them."""
    text = page.read_text()
    if page.suffix == ".ipynb":
        cells = nbformat.reads(text, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            leads_to = page.parent / path if path else page
            assert leads_to.exists(), target
            assert not anchor or anchor in anchors(leads_to), target


def test_paths_in_the_map_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    paths = re.findall(r"(?<![\w/.])((?:labkit|autograder)/[\w/]*\w(?:\.py|\.toml)?)", text)
    assert len(paths) > 30
    for path in paths:
        assert (ROOT / path.replace("PHASE/NAME", all_exercises()[0].name)).exists(), path


def test_the_readme_says_how_long_the_course_takes() -> None:
    hours = sum(exercise.entry.minutes for exercise in all_exercises()) / 60
    assert f"The course takes about {hours:.0f} hours" in (ROOT / "README.md").read_text()
