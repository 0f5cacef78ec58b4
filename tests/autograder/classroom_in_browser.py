"""The classroom's pages in headless Chromium: log in, the formgrader, the learner's list of assignments, a notebook."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import second_exercise
from browsers import new_context
from nbformat.reader import NotJSONError
from playwright.sync_api import Browser, FrameLocator, Page, expect
from waiting import wait_until


def logged_in(browser: Browser, address: str, name: str, password: str) -> Page:
    """Return the page that follows the login."""
    page = new_context(browser, viewport={"width": 1400, "height": 1000}).new_page()
    page.goto(address)
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    return page


class Formgrader:
    """The instructor's page."""

    def __init__(self, page: Page) -> None:
        self.frame: FrameLocator = page.frame_locator(".jp-IFrame iframe")
        self.at("Manage Assignments")

    def at(self, heading: str) -> None:
        expect(self.frame.locator("h1").nth(1)).to_have_text(heading)

    def press(self, row: str, icon: str) -> None:
        """Press a button of a row, and wait until what it starts has succeeded."""
        self.frame.locator("tr", has_text=row).locator(f".glyphicon-{icon}").click()
        title = self.frame.locator(".modal-title")
        expect(title).to_have_text(re.compile("Success|Error"))
        assert "Success" in title.inner_text(), self.frame.locator(".modal-body").inner_text()
        self.frame.locator(".modal-header .close").click()
        expect(title).to_have_count(0)


@contextmanager
def assignments(page: Page) -> Iterator[None]:
    """Open the list of assignments for what is done in it, and close it."""
    page.get_by_role("menuitem", name="Nbgrader").click()
    page.get_by_role("menuitem", name="Assignment List").click()
    page.locator("#released_assignments_list_loading").wait_for(state="hidden")
    yield
    page.locator(".lm-TabBar-tab", has_text="Assignments").locator(".lm-TabBar-tabCloseIcon").click()


def solve(page: Page, file: Path, module: str = second_exercise.SOLUTION) -> None:
    """Write a solution into the exercise's cell of the notebook in front, and save it."""
    page.locator(".jp-NotebookPanel").wait_for()
    page.locator("#jupyterlab-splash").wait_for(state="detached")
    cell = page.locator(".jp-CodeCell .cm-content", has_text="%%exercise")

    def is_written() -> bool:
        # on a busy machine JupyterLab shows a notebook before it accepts keys
        cell.click()
        page.keyboard.press("Control+A")
        page.keyboard.insert_text(f"%%exercise {second_exercise.NAME}\n{module}")
        return "isend" in cell.inner_text()

    def is_saved() -> bool:
        page.keyboard.press("Control+S")
        try:
            return any("isend" in cell.source for cell in nbformat.read(file, as_version=4).cells)
        except NotJSONError:  # the server empties the file before it writes it
            return False

    wait_until(is_written, cell.inner_text, pause_seconds=0.5)
    wait_until(is_saved, file.read_text, pause_seconds=0.5)
