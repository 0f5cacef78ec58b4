"""The feedback page in a real browser: what comes first, that learners' text stays text, that it fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from accessibility import barriers
from browsers import chromium, new_context
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from playwright.sync_api import Browser, Page

from autograder.feedback import outputs
from autograder.feedback.page import page
from autograder.verdict import Picture, Verdict
from labkit.checks import CheckResult, Report

NAME = "phase3_x/ring"
SCRIPT = "<script>document.title = 'taken over'</script><img src=x onerror=\"document.title='taken over'\">"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="760" height="90" role="img" aria-label="4 ranks"></svg>'
STOPPED = f"DeadlockError at {NAME}.py, line 4"
CELL = f'%%exercise {NAME}\n"""{SCRIPT}"""\n\nhere = 1  # </pre>{SCRIPT}\n\x1b[31m\u202e</span>\x00\n'

RESULTS = [
    CheckResult("the sum is right", 2, 2),
    CheckResult(
        "shards are right", 3, 0, "every rank to return", STOPPED, stopped=STOPPED, why="Rank 0 waits.", line=4
    ),
    CheckResult("sizes that do not divide", 1, 0, seen=f"{STOPPED}, as above", stopped=STOPPED, retried="failed again"),
    CheckResult("large tensors", 0.5, 0, seen="not run: 2 earlier calls had to be stopped (timeout after 5 s)"),
    CheckResult(f"few bytes {SCRIPT}", 4, 0, "12", f"a text {SCRIPT}", "what leaves"),
]


def graded(cell: str = CELL, *results: CheckResult) -> NotebookNode:
    """Return a notebook as it is after autograde, with nbgrader's scores and comments."""
    report = Report(NAME, results or RESULTS, seed=42)
    verdict = Verdict({"grade_ring": report}, (f"Odd: {SCRIPT}",), {"grade_ring": (Picture("A run", SVG, "Of it."),)})
    plain = {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False}
    exercise = {**plain, "grade_id": "ring", "solution": True, "comment": f"Well done, **really**. {SCRIPT}"}
    grade = {**plain, "grade_id": "grade_ring", "grade": True, "points": report.points, "score": report.earned}
    essay = {**plain, "grade_id": "essay", "grade": True, "solution": True, "points": 5, "score": 4, "comment": None}
    return new_notebook(
        cells=[
            new_markdown_cell(SCRIPT),
            new_code_cell(cell, metadata={"nbgrader": exercise}),
            new_code_cell('grade("ring")', metadata={"nbgrader": grade}, outputs=outputs(verdict, "grade_ring")),
            new_markdown_cell(f"My answer. {SCRIPT}", metadata={"nbgrader": essay}),
        ]
    )


def about(**changes: object) -> dict[str, object]:
    given = {"notebook": "ring", "student": SCRIPT, "assignment": "phase3_x", "score": 5.5, "max_score": 15.5}
    return {**given, "late_penalty": 0.5, **changes}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def shown(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    (tmp_path / "page.html").write_text(page(graded(), about()))
    opened = new_context(browser, viewport={"width": 360, "height": 700}).new_page()
    opened.goto((tmp_path / "page.html").as_uri())
    yield opened
    opened.context.close()


def test_what_learners_wrote_is_text_and_nothing_runs(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page(graded(), about()))
    opened = new_context(browser).new_page()
    asked, said = [], []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("console", lambda message: said.append(message.text))
    opened.goto((tmp_path / "page.html").as_uri())
    assert opened.title() == "ring: 5.5 of 15.5 points"
    assert (len(asked), said) == (1, [])  # no request was even attempted that the policy had to block
    assert opened.locator("script, img, iframe, object, link").count() == 0
    assert SCRIPT in opened.locator("#code-1-4").inner_text()
    assert "⟨1B⟩[31m⟨202E⟩</span>⟨00⟩" in opened.locator(".l").nth(4).inner_text()
    # the policy works by itself, too
    for html in ("<img src=http://x/>", "<script>document.title = 1</script>"):
        opened.evaluate("html => document.body.append(document.createRange().createContextualFragment(html))", html)
    assert opened.title() == "ring: 5.5 of 15.5 points"
    assert len(said) == 2 and all("Content Security Policy" in line for line in said)
    opened.context.close()


def test_what_a_learner_wants_to_know_comes_first(shown: Page) -> None:
    text = shown.locator("body").inner_text()
    order = [
        "5.5 of 15.5 points",
        "0.5 points are deducted",
        "Odd:",
        "Well done",
        "Look at this first: shards are right",
    ]
    order += [
        "Rank 0 waits.",
        "1 more failed for the same reason",
        "failed again",
        "Also failed",
        "few bytes",
        "1 was not run",
        "2 earlier calls",
        "Passed",
        "the sum is",
    ]
    order += ["A run", "Your cell", "essay: 4 of 5 points"]
    places = [text.find(part) for part in order]
    assert -1 not in places and places == sorted(places), dict(zip(order, places, strict=True))
    marked = shown.locator(".marked")
    assert marked.count() == 1 and "line 4: DeadlockError, in the check “shards are right”" in marked.inner_text()
    shown.get_by_role("link", name="Line 4 of your cell.").click()
    assert shown.evaluate("location.hash") == "#code-1-4"
    assert shown.locator(".comment strong").inner_text() == "really"


def test_it_fits_a_narrow_screen_and_is_small(shown: Page) -> None:
    assert shown.evaluate("document.documentElement.scrollWidth") <= 360
    long = CELL + "x = [1, 2, 'three', f'{four}']  # and so on\n" * 700
    assert len(page(graded(long), about()).encode()) < 300_000
    assert len(page(graded(CELL + "y = 'é'\n" * 100_000), about()).encode()) < 300_000


def test_a_dark_page_has_light_text(shown: Page) -> None:
    shown.emulate_media(color_scheme="dark")
    colours = "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    ink, ground = ([int(part) for part in rgb[4:-1].split(",")] for rgb in shown.evaluate(colours))
    assert min(ink) > 200 and max(ground) < 40


def test_everybody_can_find_their_way(shown: Page) -> None:
    levels = shown.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1 and all(after - before <= 1 for before, after in pairwise(levels))
    for region in shown.locator(".wide").all():  # scrollable regions can be scrolled by keyboard, and are labelled
        assert region.get_attribute("tabindex") == "0" and region.get_attribute("aria-label")
    assert shown.get_by_role("img", name="4 ranks").count() == 1
    ids = shown.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_a_mark_that_was_changed_by_hand_is_told() -> None:
    notebook = graded()
    notebook.cells[2].metadata.nbgrader.score = 7.0
    assert "has changed this from 2 to <b>7</b> points" in page(notebook, about())


def test_a_cell_that_was_left_empty() -> None:
    text = page(graded(f"%%exercise {NAME}\n", CheckResult("the sum is right", 2, 0)), about())
    assert "Nothing was judged" in text and "the sum is right" in text and "Look at this first" not in text
    assert "failed" not in text, "what was not judged has not failed"


def test_what_nobody_wrote_is_no_comment() -> None:
    """nbgrader puts "No response." under an answer that was left unchanged."""
    notebook = graded()
    about_the_answer = notebook.cells[3].metadata.nbgrader
    about_the_answer.comment = "No response."
    assert page(notebook, about()).count("From your instructor") == 1
    about_the_answer.comment = "A thought."
    assert page(notebook, about()).count("From your instructor") == 2


def test_what_needs_the_first_is_told_in_one_list() -> None:
    first = CheckResult("the part", 2, 0, "3", "4", "the last round")
    needs = CheckResult("large tensors", 1, 0, "5", "6", "“the part” first: it fails, too", cause="the part")
    text = page(graded(CELL, first, needs, replace(needs, title="in place")), about())
    assert "Look at this first: the part" in text and "2 more need the same" in text and "Also failed" not in text
    assert text.count("the last round") == 1 and "large tensors, 0 of 1" in text and "it fails, too" not in text


def test_all_passed() -> None:
    text = page(graded(CELL, replace(RESULTS[0])), about(score=2, max_score=2, late_penalty=0))
    assert text.startswith("<!DOCTYPE html>")
    assert "Every check passed" in text and "Look at this first" not in text and "late" not in text


def test_an_instructor_chooses_what_is_revealed(browser: Browser, tmp_path: Path) -> None:
    observed = ("Rank 0 waits.", "every rank to return", "line 4", "A run", "a text")
    shown = {}
    for reveal in ("details", "titles", "marks"):
        (tmp_path / "page.html").write_text(page(graded(), about(), reveal))
        opened = new_context(browser).new_page()
        opened.goto((tmp_path / "page.html").as_uri())
        shown[reveal] = opened.locator("body").inner_text()
        assert barriers(opened, "body") == []
        opened.context.close()
    assert all(text in shown["details"] for text in observed)
    assert "sizes that do not divide, 0 of 1" in shown["titles"] and "the sum is right, 2 of 2" in shown["titles"]
    assert not [text for text in observed if text in shown["titles"] + shown["marks"]]
    assert "ring: 2 of 10.5 points" in shown["marks"] and "the sum is right" not in shown["marks"]
    for text in shown.values():
        assert "5.5 of 15.5 points" in text and "Well done, really" in text, "marks and an instructor's comment"
