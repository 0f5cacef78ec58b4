"""The magics in JupyterLab, in a real browser: what a learner sees, not what was sent."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Locator, Page, expect, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--no-first-run", "--disable-sync"]
CELLS = [
    "%load_ext labkit\n%cluster local --nproc-per-node 2",
    "%%torchrun\nimport time\nfor step in range(30):\n    print('step', step)\n    time.sleep(0.1)",
    "%%torchrun\nimport os\nif os.environ['RANK'] == '1':\n    raise ValueError('on purpose')",
    "from labkit.notebook import step_through\nfrom labkit.plots import ring_rounds\n"
    "step_through(lambda round: ring_rounds(4, round), last=6)",
    "%check ring_allreduce",
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt install chromium)"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A notebook of `CELLS`, open in JupyterLab."""
    folder: Path = tmp_path_factory.mktemp("lab")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in CELLS], metadata=kernel)
    nbformat.write(notebook, folder / "cells.ipynb")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    places = {"LABKIT_WORKSPACE": "workspace", "JUPYTER_CONFIG_DIR": "config", "JUPYTER_RUNTIME_DIR": "runtime"}
    environment = {**os.environ, **{name: str(folder / place) for name, place in places.items()}}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    command += ["--IdentityProvider.token=", f"--ServerApp.root_dir={folder}", "--LabApp.news_url="]
    with open(folder / "server.log", "w") as log:
        server = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        wait_for(port, server)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = browser.new_page(viewport={"width": 1250, "height": 1400})
            page.set_default_timeout(60_000)
            expect.set_options(timeout=60_000)
            page.goto(f"http://127.0.0.1:{port}/lab/tree/cells.ipynb?reset")
            page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').wait_for()
            page.locator("#jupyterlab-splash").wait_for(state="detached")
            yield page
            browser.close()
    finally:
        server.terminate()
        server.wait()


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("JupyterLab did not start")


def run(page: Page, number: int) -> Locator:
    """Run a cell and return it at once.

    On a busy machine JupyterLab shows a notebook before it takes keys, so they are pressed until it has taken them.
    """
    cell = page.locator(".jp-CodeCell").nth(number)
    for _ in range(10):
        cell.locator(".cm-content").click()
        page.keyboard.press("Shift+Enter")
        try:
            expect(cell.locator(".jp-InputPrompt")).not_to_have_text("[ ]:", timeout=6_000)
        except AssertionError:
            continue
        return cell
    raise AssertionError(f"cell {number} did not begin to run: {cell.locator('.jp-InputPrompt').inner_text()}")


def ended(cell: Locator) -> None:
    expect(cell.locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]:"))


def test_what_a_learner_sees(page: Page) -> None:
    ended(run(page, 0))

    # live: lines and a sign of life while it runs, the lines alone when it has ended
    cell = run(page, 1)
    outputs = cell.locator(".jp-OutputArea-output")
    expect(outputs).to_contain_text("[0-1] step 5")
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

    # a report: columns stand beside each other
    cell = run(page, 4)
    ended(cell)
    row = cell.locator("table tr").first.locator("> td")
    boxes = [row.nth(column).bounding_box() for column in range(3)]
    assert all(boxes)
    assert [box["x"] for box in boxes if box] == sorted(box["x"] for box in boxes if box)
    assert boxes[0] and boxes[1] and boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"] + 1
    expect(cell.locator("table").first).to_contain_text("every rank ends with the sum of all ranks")
