"""A learner's way through the lab in JupyterLab, from the address that `labkit start` prints to full marks."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from accessibility import barriers
from front_notebook import FrontNotebook
from in_browser import started
from playwright.sync_api import Page, expect

from labkit.catalogue import all_exercises, find
from labkit.questions import Choice
from labkit.questions import find as find_question
from labkit.site.notebooks import BEGIN, END

FOLDER: list[Path] = []

OUTPUTS = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The course home, for the first time."""
    FOLDER.append(tmp_path_factory.mktemp("learner"))
    with started(FOLDER[0]) as page:
        yield page


def in_front(page: Page, name: str) -> FrontNotebook:
    """The learner's copy of an exercise's notebook."""
    return FrontNotebook(page, FOLDER[0] / "workspace" / find(name).notebook_name)


def solved(name: str, right: str = "", wrong: str = "") -> str:
    """The text of an exercise's cell, solved; with one part replaced by a wrong one."""
    text, _ = find(name).source("solution")
    assert text.count(right) == 1 or not right
    return f"%%exercise {find(name).name}\n{text.replace(right, wrong) if right else text}"


def with_first_todo(name: str) -> str:
    """The text of an exercise's cell in which only TODO 1 is written."""
    template, _ = find(name).source("template")
    block = re.search(rf"{BEGIN}\n(.*?)^ *{END}\n", find(name).source("solution")[0], re.DOTALL | re.MULTILINE)
    assert block is not None
    written = re.sub(r"^ *# YOUR CODE HERE\n.*\n", lambda _: block[1], template, count=1, flags=re.MULTILINE)
    return f"%%exercise {find(name).name}\n{written}"


def words_before(notebook: FrontNotebook, checked: int) -> int:
    """Number of words to read before the first check: text, and the module's docstrings and comments up to its first
    gap."""
    above = notebook.cells[:checked]
    module = next(cell.source for cell in above if cell.source.startswith("%%exercise"))
    to_the_gap, gap, _ = module.partition("# YOUR CODE HERE")
    assert gap, "the learner's copy has no solution"
    texts = [cell.source for cell in above if cell.cell_type == "markdown"]
    texts += re.findall(r'""".*?"""', to_the_gap, re.DOTALL) + re.findall("#.*", to_the_gap)
    return sum(len(re.findall(r"\S*\w\S*", text)) for text in texts)


def summary(points: int, complete: int) -> str:
    """The home page's line about the whole course."""
    course = all_exercises()
    total = sum(exercise.entry.points for exercise in course)
    return f"{points} of {total} points, {complete} of {len(course)} exercises complete"


def test_the_first_five_minutes(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    expect(page.get_by_role("heading", name="Course home")).to_be_visible()
    expect(page.get_by_text(summary(points=0, complete=0), exact=True)).to_be_visible()
    expect(page.get_by_text("The lab in two minutes")).to_be_visible()
    assert barriers(page, ".labkit-home") == []
    page.get_by_role("button", name="Got it").click()
    page.get_by_role("link", name="Continue here: 01 · Process groups").click()
    notebook = in_front(page, "process_group")
    first_win = notebook.numbers("%%torchrun")[0]
    notebook.run_up_to(first_win)
    expect(notebook.cell(first_win)).to_contain_text("rank 3 had 4, and now has 10")
    # after two clicks and a few times Shift+Enter
    picture = notebook.run(first_win + 1).get_by_role("img", name=re.compile(r"^Timeline of 4 ranks"))
    expect(picture).to_be_visible()
    exercise, checked = notebook.numbers("%%exercise")[0], notebook.numbers("%check")[0]
    for number in range(first_win + 2, exercise):
        notebook.run(number)
    notebook.write(with_first_todo("process_group"))
    notebook.run(exercise)
    notebook.select(checked)
    expect(notebook.run(checked)).to_contain_text("process_group: 6 of 25 points")
    assert checked < 12, "cells before the first point"
    assert words_before(notebook, checked) <= 600
    assert not [one for one in asked if "/labkit/course" in one], "there is no hub"
    log = (FOLDER[0] / "server.log").read_text()
    assert not re.search("not trusted|without encryption|ping_timeout|extension_points", log), log


def wrong_hint_right(notebook: FrontNotebook, name: str, right: str, wrong: str, check: str, todo: int) -> int:
    """Write wrong code, read what %check and %hint say, write right code; return the number of the %check cell."""
    exercise, checked = notebook.numbers("%%exercise")[0], notebook.numbers("%check")[0]
    notebook.select(exercise)
    notebook.write(solved(name, right, wrong))
    expect(notebook.run(exercise)).to_contain_text("nothing is missing")
    notebook.select(checked)
    report = notebook.run(checked)
    assert barriers(notebook.page, OUTPUTS) == []
    failed = report.get_by_role("listitem").filter(has_text=check)
    expect(failed).to_contain_text(re.compile(r"^✗\s*failed\s*0/"))
    notebook.select(checked)
    hint = notebook.insert_below(checked, "%hint")
    expect(hint.locator(".jp-RenderedMarkdown")).to_contain_text(
        re.compile(rf"^\s*TODO {todo}, hint 1 of \d · the check “{re.escape(check)}” failed")
    )
    notebook.select(exercise)
    notebook.write(solved(name))
    notebook.run(exercise)
    notebook.select(checked)
    notebook.run(checked)
    points = f"{find(name).entry.points:g}"
    expect(report).to_contain_text(f"{name}: {points} of {points} points")
    expect(report.get_by_role("note")).to_contain_text("Every check passes.")
    return checked


def test_from_a_wrong_answer_to_full_marks_and_on_to_the_next_notebook(page: Page) -> None:
    notebook = in_front(page, "process_group")
    right, wrong = "(sums[:-1] / sums[-1]).tolist()", "sums[:-1].tolist()"
    check = "all_reduce_metrics: the same means on every rank"
    checked = wrong_hint_right(notebook, "process_group", right, wrong, check, todo=4)
    notebook.cell(checked).get_by_text("The reference solution beside yours").click()
    assert barriers(page, OUTPUTS) == []
    notebook.cell(checked).get_by_role("link", name="02 Collectives").click()

    notebook = in_front(page, "collectives")
    notebook.run_up_to(notebook.numbers("%load_ext")[0])
    right, wrong = "rows = rows.roll(row.place, dims=0)", "rows = rows.roll(-row.place, dims=0)"
    check = "all-gather: row r is rank r's tensor, on every rank"
    wrong_hint_right(notebook, "collectives", right, wrong, check, todo=3)
    page.get_by_role("tab", name="HOME.md").click()
    expect(page.locator(".labkit-summary")).to_have_text(summary(points=45, complete=2))


def test_a_whole_notebook_by_keyboard(page: Page) -> None:
    page.get_by_role("link", name="07 · Activation checkpointing").press("Enter")
    notebook = in_front(page, "activation_checkpointing")
    exercise, number = notebook.numbers("%%exercise")[0], 0
    while number < len(notebook.cells):
        if number == exercise:
            right, wrong = "end = begin + length + (number < longer)", "end = begin + length"
            check = "checkpoint_sequential: segments of nearly one length, the last one called once"
            checked = wrong_hint_right(notebook, "activation_checkpointing", right, wrong, check, todo=3)
            number = checked + 2
            notebook.select(number)
        notebook.run(number)
        source = notebook.cells[number].source
        if source.startswith("%question"):
            answer(notebook, number, source.split()[1])
        elif "\nstep_through(" in source:
            play(notebook, number)
        number += 1
        if number < len(notebook.cells):
            notebook.select(number)
    for widget in (".labkit-question", ".labkit-stepper"):
        assert barriers(page, widget) == []
    (graded,) = (number for number, cell in enumerate(notebook.cells) if "import grade" in cell.source)
    expect(notebook.cell(graded)).to_contain_text("activation_checkpointing: 25 of 25 points")
    notebook.reach(number - 1, notebook.cell(number - 1).get_by_role("link", name="course home"))
    page.keyboard.press("Enter")
    card = page.locator(".labkit-card", has_text="07 · Activation checkpointing")
    expect(card).to_contain_text("25 of 25 points")
    expect(card).to_contain_text("4 questions answered")


def answer(notebook: FrontNotebook, number: int, name: str) -> None:
    """Give the right answer to the question that a cell asks."""
    cell, keyboard = notebook.cell(number), notebook.page.keyboard
    _, question = find_question(name)
    if isinstance(question, Choice):
        notebook.reach(number, cell.get_by_role("radio").first)
        keyboard.press("Space")
        for _ in range(list(question.options).index(question.right)):
            keyboard.press("ArrowDown")
    else:
        notebook.reach(number, cell.get_by_role("textbox", name="Your"))
        keyboard.type(question.solution)
    keyboard.press("Enter")
    expect(cell.get_by_role("status")).to_contain_text("Right: ")
    notebook.leave(number)


def play(notebook: FrontNotebook, number: int) -> None:
    """Move a player one step on, and play it to its end."""
    cell, keyboard = notebook.cell(number), notebook.page.keyboard
    player, slider = cell.locator(".labkit-stepper"), cell.get_by_role("slider")
    notebook.reach(number, slider)
    before, last = slider.input_value(), slider.get_attribute("max") or ""
    expect(player).to_have_attribute("data-step", before)  # its first picture has come
    keyboard.press("ArrowRight")
    expect(player).to_have_attribute("data-step", str(int(before) + 1))
    keyboard.press("Home")
    expect(player).to_have_attribute("data-step", "0")
    keyboard.press(" ")
    expect(player).to_have_attribute("data-step", last)
    expect(player.get_by_role("button", name="play")).to_be_visible()
    notebook.leave(number)
