"""A notebook open in JupyterLab, in headless Chromium."""

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nbformat
from browsers import PATIENCE_MS, chromium, new_context
from jupyter_servers import printed_address
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Locator, Page, expect
from system_packages import needs_packages
from waiting import BROKEN_SECONDS, wait_until

from labkit.linux.free_port import free_port
from labkit.progress import LAB_EXTENSIONS

EXPOSED = "--LabApp.expose_app_in_browser=True"
"""Makes JupyterLab's application `window.jupyterapp`: it says when it accepts keys."""
SETTINGS = {"@jupyterlab/completer-extension/manager": {"providerTimeout": PATIENCE_MS}}
"""Settings of JupyterLab: how long it waits for the names that a busy kernel offers."""
ACCEPTS_KEYS = """() => {
    const app = window.jupyterapp;
    if (!app) return false;
    const panel = [...app.shell.widgets("main")].find((one) => one.isVisible && one.context?.sessionContext);
    const session = panel?.context.sessionContext;
    const kernel = session?.session?.kernel;
    return app.commands.keyBindings.some((key) => key.command === "notebook:run-cell-and-select-next")
        && panel?.context.isReady && session?.isReady
        && kernel?.connectionStatus === "connected" && kernel.status === "idle";
}"""
"""Whether the notebook in front is connected to its kernel, and keys mean something; earlier ones would be lost."""


@contextmanager
def opened(folder: Path, cells: Sequence[str]) -> Iterator[Page]:
    """A notebook of `cells`, open in JupyterLab, with its files in `folder`."""
    needs_packages("chromium")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells], metadata=kernel)
    nbformat.write(notebook, folder / "cells.ipynb")
    command = ["jupyterlab", "--no-browser", "--allow-root", f"--port={free_port()}", EXPOSED]
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
    command = ["labkit", "start", "--no-browser", f"--port={free_port()}", EXPOSED]
    with serving(folder, command) as server, browsing() as page:
        page.goto(printed_address(server, folder / "server.log"))
        yield page


@contextmanager
def serving(folder: Path, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A module of Python that becomes a JupyterLab of its own, with its workspace and its log in `folder`."""
    places = {"LABKIT_WORKSPACE": "workspace", "JUPYTER_CONFIG_DIR": "config", "JUPYTER_RUNTIME_DIR": "runtime"}
    environment = {**os.environ, **{name: str(folder / place) for name, place in places.items()}}
    for plugin, settings in SETTINGS.items():
        file = folder / "config" / "lab" / "user-settings" / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))
    with open(folder / "server.log", "w") as log:
        server = subprocess.Popen([sys.executable, "-m", *command], env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        yield server
    finally:
        server.terminate()
        server.wait(BROKEN_SECONDS)


@contextmanager
def browsing() -> Iterator[Page]:
    with chromium() as browser:
        yield new_context(browser, viewport={"width": 1250, "height": 1400}).new_page()


def ready(page: Page) -> None:
    """Wait until the notebook in front has its kernel; a cell that is run earlier opens a dialog that asks for one."""
    page.wait_for_function(ACCEPTS_KEYS)  # the toolbar of a narrow page does not show the kernel
    page.locator("#jupyterlab-splash").wait_for(state="detached")


def address(folder: Path, server: subprocess.Popen[bytes]) -> str:
    """The address of a JupyterLab that has been started in `folder`, once it answers."""

    def answered() -> str:
        assert server.poll() is None, (folder / "server.log").read_text()
        for told in (folder / "runtime").glob("jpserver-*.json"):
            with contextlib.suppress(OSError, ValueError):  # it is just being written, or nothing listens yet
                url = str(json.loads(told.read_text())["url"])
                urllib.request.urlopen(f"{url}api", timeout=BROKEN_SECONDS).close()
                return url
        return ""

    return wait_until(answered, (folder / "server.log").read_text)


def run(page: Page, number: int) -> Locator:
    """Start a cell and return it at once."""
    cell = page.locator(".jp-CodeCell").nth(number)
    start(cell, cell.locator(".cm-content").click)
    return cell


def start(cell: Locator, go_there: Callable[[], None]) -> None:
    """Start a cell by Shift+Enter, once `go_there` has made it the active one, and return when it is on its way."""
    prompt = cell.locator(".jp-InputPrompt")
    before = prompt.inner_text().strip()
    go_there()
    expect(cell).to_have_class(re.compile(r"\bjp-mod-active\b"))
    wait_for_focus(cell)
    cell.page.keyboard.press("Shift+Enter")
    expect(prompt).not_to_have_text(before)


def wait_for_focus(place: Locator) -> None:
    """Wait until what is typed goes to an element, or to something in it."""
    place.page.wait_for_function("(place) => place.contains(document.activeElement)", arg=place.element_handle())


def ended(cell: Locator) -> None:
    expect(cell.locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]:"))
