"""A notebook open in JupyterLab, in headless Chromium."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Locator, Page, expect, sync_playwright
from system_packages import needs_packages, program

from labkit.linux.free_port import free_port
from labkit.progress import LAB_EXTENSIONS

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--no-first-run", "--disable-sync"]


@contextmanager
def opened(folder: Path, cells: Sequence[str]) -> Iterator[Page]:
    """A notebook of `cells`, open in JupyterLab, with its files in `folder`."""
    needs_packages("chromium")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells], metadata=kernel)
    nbformat.write(notebook, folder / "cells.ipynb")
    command = ["jupyterlab", "--no-browser", "--allow-root", f"--port={free_port()}"]
    command += ["--IdentityProvider.token=", f"--ServerApp.root_dir={folder}", "--LabApp.news_url="]
    command += [f"--LabApp.extra_labextensions_path={LAB_EXTENSIONS}"]
    with serving(folder, command) as server, browsing() as page:
        page.goto(f"{address(folder, server)}lab/tree/cells.ipynb?reset")
        ready(page)
        yield page


@contextmanager
def started(folder: Path) -> Iterator[Page]:
    """The page whose address `labkit start` prints, with a new workspace in `folder`."""
    needs_packages("chromium")
    with serving(folder, ["labkit", "start", "--no-browser", f"--port={free_port()}"]) as server, browsing() as page:
        while not (address := re.search(r"^(http://\S+)\n\Z", (folder / "server.log").read_text(), re.MULTILINE)):
            assert server.poll() is None, (folder / "server.log").read_text()
            time.sleep(0.1)
        page.goto(address[1])
        yield page


@contextmanager
def serving(folder: Path, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A module of Python that becomes a JupyterLab of its own, with its workspace and its log in `folder`."""
    places = {"LABKIT_WORKSPACE": "workspace", "JUPYTER_CONFIG_DIR": "config", "JUPYTER_RUNTIME_DIR": "runtime"}
    environment = {**os.environ, **{name: str(folder / place) for name, place in places.items()}}
    with open(folder / "server.log", "w") as log:
        server = subprocess.Popen([sys.executable, "-m", *command], env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        yield server
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:  # it may wait for a kernel that is just being restarted
            server.kill()
            server.wait()


@contextmanager
def browsing() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program("chromium"), args=FLAGS)
        page = browser.new_context(viewport={"width": 1250, "height": 1400}).new_page()
        page.set_default_timeout(240_000)
        expect.set_options(timeout=240_000)
        yield page
        browser.close()


def ready(page: Page) -> None:
    """Wait until the notebook in front has its kernel; a cell that is run earlier opens a dialog that asks for one."""
    expect(page.locator(".jp-Toolbar-kernelName:visible")).to_have_text("Python 3 (ipykernel)")
    page.locator('.jp-Notebook-ExecutionIndicator:visible[data-status="idle"]').wait_for()
    page.locator("#jupyterlab-splash").wait_for(state="detached")


def address(folder: Path, server: subprocess.Popen[bytes]) -> str:
    """The address of a JupyterLab that has been started in `folder`, once it answers."""
    while server.poll() is None:
        for told in (folder / "runtime").glob("jpserver-*.json"):
            with contextlib.suppress(OSError, ValueError):  # it is just being written, or nothing listens yet
                url = str(json.loads(told.read_text())["url"])
                urllib.request.urlopen(f"{url}api", timeout=60).close()
                return url
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start: {(folder / 'server.log').read_text()}")


def run(page: Page, number: int) -> Locator:
    """Start a cell and return it at once."""
    cell = page.locator(".jp-CodeCell").nth(number)
    start(page, cell, lambda: cell.locator(".cm-content").click())
    return cell


def start(page: Page, cell: Locator, go_there: Callable[[], None]) -> None:
    """Start a cell by Shift+Enter, once `go_there` has made it the active one, and return when the kernel has it.

    On a busy machine JupyterLab shows a notebook before it accepts keys, and loses cells that are run while it connects
    to the kernel (their prompt is empty again), so keys are pressed until the kernel has the cell.
    """
    prompt = cell.locator(".jp-InputPrompt")
    before = prompt.inner_text().strip()
    for _ in range(10):
        go_there()
        page.keyboard.press("Shift+Enter")
        try:
            expect(prompt).not_to_have_text(before, timeout=6_000)
        except AssertionError:
            continue
        if kernel_has(page, prompt, before):
            return
    raise AssertionError(f"the cell did not begin to run: {prompt.inner_text()}")


def kernel_has(page: Page, prompt: Locator, before: str) -> bool:
    """Has the kernel begun with a cell that waits for it? Not when the kernel stays idle for ten seconds."""
    kernels = f"{page.url.partition('/lab')[0]}/api/kernels"
    for _ in range(20):
        shown = prompt.inner_text().strip()
        if shown in (before, "[ ]:"):
            return False
        if shown != "[*]:" or any(k["execution_state"] == "busy" for k in page.request.get(kernels).json()):
            return True
        page.wait_for_timeout(500)
    return False


def ended(cell: Locator) -> None:
    expect(cell.locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]:"))
