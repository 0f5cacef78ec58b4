"""The magics in JupyterLab, in a real browser: what a learner sees, not what was sent."""

import re
from collections.abc import Iterator

import pytest
from in_browser import ended, opened, run
from playwright.sync_api import Locator, Page, expect

CELLS = [
    "%load_ext labkit\n%cluster local --nproc-per-node 2",
    "%%torchrun\nimport time\nfor step in range(30):\n    print('step', step)\n    time.sleep(0.1)",
    "%%torchrun\nimport os\nif os.environ['RANK'] == '1':\n    raise ValueError('on purpose')",
    "from labkit.notebook import step_through\nfrom labkit.plots import ring_rounds\n"
    "step_through(lambda round: ring_rounds(4, round), last=6)",
    "%check ring_allreduce",
    "from labkit.notebook import explore\nexplore('gpt-1.3b')",
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A notebook of `CELLS`, open in JupyterLab."""
    with opened(tmp_path_factory.mktemp("lab"), CELLS) as page:
        yield page


def test_what_a_learner_sees(page: Page) -> None:
    ended(run(page, 0))

    # live: lines and a sign of life while it runs, the lines alone when it has ended
    cell = run(page, 1)
    outputs = cell.locator(".jp-OutputArea-output")
    expect(outputs).to_contain_text(re.compile(r"\[0-1\]\s*step 5"))
    expect(cell.locator(".jp-InputPrompt")).to_have_text("[*]:")
    expect(outputs).to_contain_text(re.compile(r"2 ranks running, \d+ s"))
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

    # the slider draws another picture
    cell = run(page, 3)
    ended(cell)
    picture = cell.locator(".jp-OutputArea-output img")
    first = picture.get_attribute("src")
    cell.locator(".noUi-handle").click()
    page.keyboard.press("ArrowRight")
    expect(cell.locator(".widget-readout")).to_have_text("1")
    expect(picture).not_to_have_attribute("src", first or "")

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
    move(page, cell, "pipeline", "ArrowRight")
    expect(status).to_contain_text("Not possible: zero 3 with pipeline 2")
    expect(picture).to_have_attribute("aria-label", before)
    page.set_viewport_size({"width": 900, "height": 1400})  # the picture shrinks with its cell
    expect(cell.locator(".widget-hslider").first).to_be_visible()
    edges = [cell.locator(".jp-OutputArea-output").bounding_box(), picture.bounding_box()]
    assert edges[0] and edges[1] and edges[1]["x"] + edges[1]["width"] <= edges[0]["x"] + edges[0]["width"]


def move(page: Page, cell: Locator, name: str, key: str) -> None:
    """Press a key on the slider with that label."""
    cell.locator(".widget-hslider", has=page.get_by_text(name, exact=True)).locator(".noUi-handle").focus()
    page.keyboard.press(key)
