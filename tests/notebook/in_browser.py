"""A notebook open in JupyterLab, in headless Chromium."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Locator, Page, expect, sync_playwright
from system_packages import needs_packages, program

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--no-first-run", "--disable-sync"]


@contextmanager
def opened(folder: Path, cells: Sequence[str]) -> Iterator[Page]:
    """A notebook of `cells`, open in JupyterLab, with its files in `folder`."""
    needs_packages("chromium")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells], metadata=kernel)
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
            browser = playwright.chromium.launch(executable_path=program("chromium"), args=FLAGS)
            page = browser.new_page(viewport={"width": 1250, "height": 1400})
            page.set_default_timeout(240_000)
            expect.set_options(timeout=240_000)
            page.goto(f"http://127.0.0.1:{port}/lab/tree/cells.ipynb?reset")
            page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').wait_for()
            page.locator("#jupyterlab-splash").wait_for(state="detached")
            yield page
            browser.close()
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:  # it may wait for a kernel that is just being restarted
            server.kill()
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
    """Start a cell and return it at once.

    On a busy machine JupyterLab shows a notebook before it accepts keys, and loses cells that are run while it connects
    to the kernel, so keys are pressed until the kernel has the cell.
    """
    cell = page.locator(".jp-CodeCell").nth(number)
    for _ in range(10):
        cell.locator(".cm-content").click()
        page.keyboard.press("Shift+Enter")
        try:
            expect(cell.locator(".jp-InputPrompt")).not_to_have_text("[ ]:", timeout=6_000)
        except AssertionError:
            continue
        if kernel_has(page, cell):
            return cell
    raise AssertionError(f"cell {number} did not begin to run: {cell.locator('.jp-InputPrompt').inner_text()}")


def kernel_has(page: Page, cell: Locator) -> bool:
    """Has the kernel begun with a cell that waits for it? Not when the kernel stays idle for ten seconds."""
    kernels = f"{page.url.partition('/lab')[0]}/api/kernels"
    for _ in range(20):
        waits = cell.locator(".jp-InputPrompt").inner_text().strip() == "[*]:"
        if not waits or any(kernel["execution_state"] != "idle" for kernel in page.request.get(kernels).json()):
            return True
        page.wait_for_timeout(500)
    return False


def ended(cell: Locator) -> None:
    expect(cell.locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]:"))
