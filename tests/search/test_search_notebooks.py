"""Search: what is found for some words, where it leads, and that it follows the learner's files."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labkit.catalogue import find
from labkit.search import Hit, Index, Passage
from labkit.search.passages import heading_id, passages_of
from labkit.start import own_copy


@pytest.fixture(scope="module")
def index() -> Index:
    return Index()


def places(hits: list[Hit]) -> list[tuple[str, str]]:
    return [(hit.passage.path.name, hit.passage.section) for hit in hits]


@pytest.mark.parametrize(
    ("words", "page", "section"),
    [
        ("rendezvous", "glossary.md", "rendezvous"),
        ("my ranks hang", "troubleshooting.md", "Real ranks hang"),
        ("all_reduce latencies", "02_collectives.ipynb", "6 Small tensors pay for rounds, large ones for bytes"),
        ("bucket valley", "24_autotune.ipynb", "6 Bucket sizes have a valley"),
        ("memory decid", "strategies.md", "Memory decides between DDP and ZeRO"),
    ],
)
def test_words_lead_to_the_section_that_explains_them(
    index: Index, workspace: Path, words: str, page: str, section: str
) -> None:
    for name in ("process_group", "collectives", "autotune"):
        own_copy(find(name))
    assert (page, section) in places(index.search(words))[:3]


def test_a_section_is_listed_once_and_an_excerpt_marks_the_words(index: Index) -> None:
    hits = index.search("deadlocks")
    assert len(hits) > 3 and len({(hit.passage.path, hit.passage.section) for hit in hits}) == len(hits)
    marked = {part.lower() for hit in hits for part, matches in hit.parts if matches}
    assert marked and all(re.match("deadlock", part) for part in marked)
    assert index.search("? ! a") == [] and index.search('"unclosed') == []


def test_if_no_section_has_all_words_those_with_some_are_listed(index: Index) -> None:
    assert ("glossary.md", "rendezvous") in places(index.search("xyzzy rendezvous"))


def test_what_is_saved_or_removed_is_seen_by_the_next_search(workspace: Path) -> None:
    index, copy = Index(), own_copy(find("trainer"))
    assert index.search("quokka") == []
    notebook = nbformat.read(copy, as_version=4)
    notebook.cells.append(new_code_cell("# my own note about a quokka", id="own"))
    nbformat.write(notebook, copy)
    (hit,) = index.search("quokka")
    assert (hit.passage.title, hit.passage.place) == ("04 · A data-parallel trainer", "cell-id=own")
    copy.write_text("{")  # being saved
    assert index.search("quokka") == []
    nbformat.write(notebook, copy)
    assert len(index.search("quokka")) == 1
    copy.unlink()
    assert index.search("quokka") == []


def test_passages_of_a_notebook_lead_to_its_cells(tmp_path: Path) -> None:
    text = "# 01 · A *title*\n\n[course home](../HOME.md) · [02 →](b.ipynb)\n\nFirst.\n\n"
    text += "## 1 Two `ranks`\n\nSecond, [a link](c.md)."
    cells = [new_markdown_cell(text, id="a"), new_code_cell("x = 1", id="b"), new_code_cell("%check", id="c")]
    nbformat.write(new_notebook(cells=cells), tmp_path / "one.ipynb")
    found = [(one.section, one.text, one.place, one.begins, one.code) for one in passages_of(tmp_path / "one.ipynb")]
    assert found == [
        ("01 · A title", "First.", "cell-id=a", True, False),
        ("1 Two ranks", "Second, a link.", "cell-id=a", True, False),
        ("1 Two ranks", "x = 1", "cell-id=b", False, True),
    ]


def test_passages_of_a_page_lead_to_its_headings_outside_of_code(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\nText.\n\n```python\n# a comment\n```\n\n## How fast?\n\n| a | b |\n|---|---|\n| **1** | 2 |\n"
    )
    first, second = passages_of(page)
    assert (first.section, "# a comment" in first.text) == ("Page", True)
    assert second == Passage("Page", "How fast?", second.text, page, "How-fast?") and second.text.split() == [
        "a",
        "b",
        "1",
        "2",
    ]
    assert heading_id("`%%torchrun` beside *torchrun*") == "%%torchrun-beside-torchrun"
