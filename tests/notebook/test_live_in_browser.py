"""The display of a run in JupyterLab, in a real browser: Stop, and a page that is closed and opened again."""

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from in_browser import ended, opened, ready, run
from nbformat import NotebookNode
from nbformat.reader import NotJSONError
from playwright.sync_api import Page, expect
from waiting import wait_until

CELLS = [
    "%load_ext labkit\n%cluster local --nproc-per-node 2",
    "%%torchrun\nimport time\nprint('<b>begun</b>')\ntime.sleep(300)",
    "print('not to be reached')",
    "%%torchrun -n 2\nimport os, time\nfor step in range(40):\n    print('step', step)\n    time.sleep(0.1)\n"
    "while not os.path.exists('go'):\n    time.sleep(0.1)\n"
    "print('\\x1b[31mlast\\x1b[0m')\nint(os.environ['RANK'])",
    "%%torchrun -n 8\nfor line in range(20_000):\n    print('x' * 60, line)\nprint('the end')",
]

FOLDER: list[Path] = []

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    FOLDER.append(tmp_path_factory.mktemp("live"))
    with opened(FOLDER[0], CELLS) as page:
        ended(run(page, 0))
        yield page


def test_stop_is_an_interrupt_of_the_cell_and_ends_run_all(page: Page) -> None:
    cell = page.locator(".jp-CodeCell").nth(1)
    page.locator(".lm-MenuBar-itemLabel", has_text="Run").first.click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells$")).click()
    # rank output is shown as text
    expect(cell.locator(".labkit-live .lines")).to_contain_text("<b>begun</b>")
    expect(cell.locator(".labkit-live .state")).to_contain_text("2 ranks running")
    cell.get_by_role("button", name="Stop").click()
    ended(cell)
    expect(cell.locator(".jp-OutputArea-output").last).to_contain_text(
        "KeyboardInterrupt: 2 ranks stopped with the Stop button"
    )
    expect(cell.locator(".jp-OutputArea-output").first).to_have_text("[0-1] <b>begun</b>")
    expect(page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]')).to_be_visible()
    expect(page.locator(".jp-CodeCell").nth(2).locator(".jp-OutputArea-output")).to_have_count(0)


def saved_outputs(cell: int) -> list[NotebookNode]:
    """Outputs of a cell in the notebook's file, none while JupyterLab is writing it."""
    try:
        return nbformat.read(FOLDER[0] / "cells.ipynb", as_version=4).cells[cell].outputs
    except NotJSONError:
        return []


def test_a_page_that_is_opened_again_shows_the_run_and_what_it_left(page: Page) -> None:
    cell = run(page, 3)
    expect(cell.locator(".lines")).to_contain_text("step 3")
    wait_until(lambda: saved_outputs(3))  # JupyterLab saves the file at some later time
    address = page.url.split("?")[0]
    kernels = f"{address.partition('/lab')[0]}/api/kernels"
    page.goto("about:blank")
    wait_until(lambda: all(kernel["connections"] == 0 for kernel in page.request.get(kernels).json()))
    page.goto(address)
    cell = page.locator(".jp-CodeCell").nth(3)
    # the job has continued, visibly
    expect(cell.locator(".state")).to_contain_text("2 ranks running")
    expect(cell.locator(".lines")).to_contain_text(re.compile(r"\[0-1\]\s*step 0"))
    expect(cell.get_by_role("button", name="Stop")).to_be_visible()
    (FOLDER[0] / "go").touch()
    # it leaves what every cell leaves: plain outputs
    ended(cell)
    outputs = cell.locator(".jp-OutputArea-output")
    expect(outputs).to_have_count(2)
    lines = outputs.first.inner_text().strip().split("\n")
    assert lines == [*(f"[0-1] step {step}" for step in range(40)), "[0-1] last"]
    expect(outputs.last).to_have_text("[0] 0\n[1] 1")
    expect(cell.locator(".labkit-live")).to_have_count(0)


def test_a_flood_leaves_the_page_quick(page: Page) -> None:
    cell = run(page, 4)
    most = 0
    while cell.locator(".jp-InputPrompt").inner_text() == "[*]:":
        most = max(most, cell.locator(".labkit-live .row").count())
        # the page responds: this would wait in the page's own thread
        page.evaluate("new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
    ended(cell)
    assert most < 200
    text = cell.locator(".jp-OutputArea-output").inner_text()
    assert "more lines" in text
    ends = re.findall(r"\[([\d, -]+)\] the end", text)
    ranks = [range(int(a), int(b or a) + 1) for end in ends for a, b in re.findall(r"(\d+)(?:-(\d+))?", end)]
    assert sorted(rank for part in ranks for rank in part) == list(range(8))


def test_when_the_kernel_ends_in_the_midst_the_page_and_the_notebook_say_so(page: Page) -> None:
    cell = run(page, 1)
    expect(cell.locator(".lines")).to_contain_text("<b>begun</b>")
    page.locator(".lm-MenuBar-itemLabel", has_text="Kernel").first.click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Restart Kernel…$")).click()
    page.locator(".jp-Dialog .jp-mod-accept").click()
    expect(cell.locator(".labkit-live")).to_have_count(0)
    outputs = cell.locator(".jp-OutputArea-output")
    expect(outputs.first).to_have_text("[0-1] <b>begun</b>")
    expect(outputs.last).to_contain_text(
        re.compile(r"The kernel has ended, and the ranks with it; their output is in workspace/logs/\d{4}")
    )
    expect(cell.get_by_role("button", name="Stop")).to_have_count(0)
    ready(page)  # a server that is asked to end while a kernel restarts waits for it
