"""The magics in JupyterLab, in a real browser: what a learner sees, not what was sent."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_browser import ended, opened, ready, run
from playwright.sync_api import Locator, Page, expect

from labkit.catalogue import find

MODULE, _ = find("process_group").source("solution")
SILENT = (
    "import os, time\nwhile not os.path.exists('silence'):\n    time.sleep(0.1)\nprint('first words')\n"
    "while not os.path.exists('end'):\n    time.sleep(0.1)"
)
CELLS = [
    "%load_ext labkit\n%cluster local --nproc-per-node 2",
    "%%torchrun\nimport os, time\nfor step in range(30):\n    print('step', step)\n    time.sleep(0.1)\n"
    "while not os.path.exists('seen'):\n    time.sleep(0.1)",
    "%%torchrun\nimport os\nif os.environ['RANK'] == '1':\n    raise ValueError('on purpose')",
    "from labkit.notebook import step_through\nfrom labkit.plots import ring_rounds\n"
    "step_through(lambda round: ring_rounds(4, round), last=6)",
    "%check ring_allreduce",
    "from labkit.notebook import explore\nexplore('gpt-1.3b')",
    "from labkit import catalogue, progress\nprint(progress.write_home())",
    "exercise = catalogue.find('collectives')\nexercise.save(exercise.source('template')[0])\n%check collectives",
    "progress.record_answer('collectives', 'bytes', tries=1, right=True)",
    "%question tree_rounds",
    "%question held_in_backward",
    f"%%exercise process_group\n{MODULE.replace('fields[field] =', 'fields[feld] =')}",
    "%check process_group",
    "%%torchrun -n 2\nfrom labkit.exercises import process_group\nprocess_group.DDPConfig.from_env()",
    "from labkit.exercises import process_group\nprocess_group.DDPConfig(rank=-1)",
    "%%torchrun -n 4 --n",
    SILENT,
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Page]:
    """A notebook of `CELLS`, open in JupyterLab."""
    with opened(folder, CELLS) as page:
        yield page


def test_what_a_learner_sees(page: Page, folder: Path) -> None:
    ended(run(page, 0))

    # live: lines and a sign of life while it runs, the lines alone when it has ended
    cell = run(page, 1)
    outputs = cell.locator(".jp-OutputArea-output")
    expect(outputs).to_contain_text(re.compile(r"\[0-1\]\s*step 5"))
    expect(cell.locator(".jp-InputPrompt")).to_have_text("[*]:")
    expect(outputs).to_contain_text(re.compile(r"2 ranks running, \d+ s"))
    (folder / "seen").touch()
    ended(cell)
    expect(outputs).to_have_count(1)
    assert outputs.inner_text().split("\n")[:30] == [f"[0-1] step {step}" for step in range(30)]

    # an error: short, with the learner's line
    cell = run(page, 2)
    ended(cell)
    shown = cell.locator(".jp-OutputArea-output").inner_text()
    assert "RankFailed: ValueError on rank 1 of 2" in shown
    assert "----> 4     raise ValueError('on purpose')" in shown
    assert len(shown.strip().split("\n")) <= 8

    # the player takes the place of the still picture; by keyboard, then by itself to the last step
    cell = run(page, 3)
    ended(cell)
    player, picture = cell.locator(".labkit-stepper"), cell.get_by_role("img")
    expect(player).to_have_attribute("data-step", "0")
    expect(picture).to_have_attribute("alt", re.compile("after 0 of 6 rounds"))
    player.get_by_role("slider", name="round").press("ArrowRight")
    expect(picture).to_have_attribute("alt", re.compile("after 1 of 6 rounds"))
    play = player.get_by_role("button", name="play")
    assert play.evaluate("play => [play.click(), play.textContent][1]") == "❚❚ pause"
    assert player.locator(".play").evaluate("play => [play.click(), play.textContent][1]") == "▶ play"
    page.keyboard.press(" ")
    expect(player).to_have_attribute("data-step", "6")
    expect(player.get_by_role("button", name="play")).to_be_visible()
    expect(player.get_by_role("button", name="one step on")).to_be_disabled()

    # a report: columns are side by side
    cell = run(page, 4)
    ended(cell)
    item = cell.locator("[role=listitem]").first
    row = item.locator("> div")
    boxes = [row.nth(column).bounding_box() for column in range(3)]
    assert all(boxes)
    assert [box["x"] for box in boxes if box] == sorted(box["x"] for box in boxes if box)
    assert boxes[0] and boxes[1] and boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"] + 1
    expect(item).to_contain_text("reduce-scatter leaves shard r on rank r")

    # sliders over a prediction: a new picture; for invalid values a message above the previous picture
    cell = run(page, 5)
    ended(cell)
    picture = cell.locator("svg[aria-label^='time of a step']")
    status = cell.get_by_role("status")
    expect(status).to_contain_text("a step of 256 samples on 32 GPUs")
    before = picture.get_attribute("aria-label") or ""
    move(page, cell, "microbatches", "ArrowRight")
    expect(status).to_contain_text("a step of 512 samples on 32 GPUs")
    expect(picture).not_to_have_attribute("aria-label", before)
    before = picture.get_attribute("aria-label") or ""
    move(page, cell, "pipeline", "End")
    expect(status).to_contain_text("Not possible: tensor x pipeline = 1 x 64 = 64 must divide 32 GPUs")
    expect(picture).to_have_attribute("aria-label", before)
    page.set_viewport_size({"width": 900, "height": 1400})  # the picture shrinks with its cell
    expect(cell.locator(".widget-hslider").first).to_be_visible()
    edges = [cell.locator(".jp-OutputArea-output").bounding_box(), picture.bounding_box()]
    assert edges[0] and edges[1] and edges[1]["x"] + edges[1]["width"] <= edges[0]["x"] + edges[0]["width"]


def test_the_course_home_follows_a_check(page: Page) -> None:
    for cell in (0, 6):
        ended(run(page, cell))
    home = page.context.new_page()
    home.goto(f"{page.url.partition('/lab')[0]}/lab/tree/workspace/HOME.md")
    following = home.locator(".labkit-continue")
    expect(following).to_have_text("Continue here: 01 · Process groups")
    home.get_by_role("button", name="Got it").click()
    expect(home.get_by_role("button", name="Got it")).to_be_hidden()
    card = home.locator(".labkit-card", has=home.get_by_role("link", name="02 · Collectives", exact=True))
    expect(card).to_contain_text("not begun")
    ended(run(page, 7))
    expect(following).to_have_text("Continue here: 02 · Collectives")
    expect(card).to_contain_text("begun · next")
    ended(run(page, 8))
    expect(card).to_contain_text("1 question answered")
    expect(home.get_by_role("button", name="Got it")).to_be_hidden()
    home.close()


def move(page: Page, cell: Locator, name: str, key: str) -> None:
    """Press a key on the slider with that label."""
    cell.locator(".widget-hslider", has=page.get_by_text(name, exact=True)).locator(".noUi-handle").focus()
    page.keyboard.press(key)


def test_a_question_is_answered_by_keyboard(page: Page) -> None:
    ended(run(page, 0))
    cell = run(page, 9)
    ended(cell)
    expect(cell.locator(".jp-RenderedMarkdown")).to_contain_text("a In how many rounds does a tree all-reduce")
    field = cell.get_by_label("Your answer")
    reply = cell.get_by_role("status")

    def answer(text: str) -> None:
        field.fill(text)
        page.keyboard.press("Enter")

    answer("3,5")
    expect(reply).to_contain_text("That is not a number: 3,5. For three and a half write 3.5")
    answer("10")
    expect(reply).to_have_text("Not yet: 10. Those are the levels on the way up. The sum has to come down again.")
    expect(field).to_be_focused()
    expect(field).to_have_attribute("aria-invalid", "true")
    for given in ("11", "12"):
        expect(cell.get_by_role("button", name="Show me")).to_be_hidden()
        answer(given)
        expect(reply).to_contain_text(f"Not yet: {given}.")
    expect(cell.get_by_role("button", name="Show me")).to_be_visible()
    answer("2 * 10")
    expect(reply).to_contain_text("Right: 20. 2\u00b9\u2070 is 1,024, so ten levels reach 1,000 ranks")
    expect(cell.get_by_role("button", name="Show me")).to_be_hidden()

    # what was answered is there when the cell runs again
    cell = run(page, 9)
    ended(cell)
    expect(field).to_have_value("2 * 10")
    expect(reply).to_contain_text("Right: 20.")

    # a choice: arrow keys choose, Enter submits
    cell = run(page, 10)
    ended(cell)
    choices = cell.get_by_role("radio")
    left = [place["x"] for one in (choices.nth(0), cell.get_by_role("button")) if (place := one.bounding_box())]
    assert left == [left[0]] * 2  # the button is right below the options
    choices.nth(0).focus()
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    expect(cell.get_by_role("status")).to_contain_text("Not yet")
    page.keyboard.press("ArrowDown")
    expect(choices.nth(1)).to_be_checked()
    page.keyboard.press("Enter")
    expect(cell.get_by_role("status")).to_contain_text("Right: the inputs of all layers, and the activations of one.")


def test_a_line_of_the_learners_module_leads_to_the_cell_where_it_was_written(page: Page) -> None:
    def leads_to(link: Locator, line: int) -> None:
        link.press("Enter")
        expect(page.locator(".jp-CodeCell").nth(11)).to_have_class(re.compile("jp-mod-active"))
        expect(page.locator(".jp-CodeCell").nth(11).locator(".cm-content")).to_be_focused()
        expect(page.locator(".jp-StatusBar-Widget")).to_contain_text(f"Ln {line}, Col 1")

    for cell in (0, 11):
        ended(run(page, cell))
    wrong, check = line_of("fields[field] ="), line_of("require_process_group(self")
    report = run(page, 12)
    ended(report)
    leads_to(report.get_by_role("link", name=f"phase1_data_parallel/process_group.py, line {wrong}").first, wrong)
    leads_to(report.get_by_role("link", name=f"process_group.py, line {wrong}", exact=True).first, wrong)
    for number, line in ((13, wrong), (14, check)):
        traceback = run(page, number)
        ended(traceback)
        name = re.compile(rf"^phase1_data_parallel.process_group.py(:|, line ){line}$")
        leads_to(traceback.get_by_role("link", name=name), line)
        expect(traceback.locator(".labkit-line")).to_have_count(1)


def test_the_tab_key_offers_the_options_of_a_magic_first(page: Page) -> None:
    ended(run(page, 0))
    page.locator(".jp-CodeCell").nth(15).locator(".cm-content").click()
    offered = page.locator(".jp-Completer:visible li .jp-Completer-match")
    page.keyboard.press("Control+End")
    page.keyboard.press("Tab")
    expect(offered.first).to_have_text("--nnodes")
    assert offered.all_inner_texts()[:2] == ["--nnodes", "--nproc-per-node"]
    page.keyboard.press("Escape")


def line_of(text: str) -> int:
    """Number of the line of `MODULE` in its cell, which has the magic above it."""
    return 1 + next(number for number, line in enumerate(MODULE.splitlines(), 1) if text in line)


def test_a_stored_question_is_text_until_its_cell_runs_again(page: Page) -> None:
    for cell in (0, 9, 10):
        ended(run(page, cell))
    page.keyboard.press("Control+s")
    page.locator(".lm-MenuBar-itemLabel", has_text="Kernel").first.click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Restart Kernel…$")).click()
    with page.expect_response("**/restart*"):
        page.locator(".jp-Dialog .jp-mod-accept").click()
    page.reload()
    cell = page.locator(".jp-CodeCell").nth(10)
    expect(cell).to_contain_text("To answer, run this cell, or %question held_in_backward 1, 2, ...")
    expect(cell.get_by_role("listitem").first).to_contain_text("the activations of all layers")
    expect(page.get_by_text("model not found")).to_have_count(0)
    ready(page)
    for number in (0, 10):
        ended(run(page, number))
    expect(cell.get_by_role("radio").first).to_be_visible()


def test_a_silent_cell_says_that_it_runs(page: Page, folder: Path) -> None:
    cell = run(page, CELLS.index(SILENT))
    line = cell.locator(".labkit-elapsed")
    expect(line).to_have_text(re.compile(r"running, \d+ s"))
    expect(cell.locator(".jp-OutputArea-output")).to_have_count(0)
    (folder / "silence").touch()
    expect(cell.locator(".jp-OutputArea-output")).to_contain_text("first words")
    expect(line).to_have_count(0)
    (folder / "end").touch()
    ended(cell)
    expect(line).to_have_count(0)
