"""The notebook that is open in front, in JupyterLab: its cells by number, run by hand or by keyboard alone."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
from in_browser import ended, ready, start, wait_for_focus
from nbformat.reader import NotJSONError
from nbformat.v4 import new_code_cell
from playwright.sync_api import Locator, Page, expect
from waiting import wait_until


class FrontNotebook:
    """Cells are counted from 0, those without code included, as in the notebook's file."""

    def __init__(self, page: Page, file: Path) -> None:
        """Wait until the notebook of this file is in front."""
        self.page = page
        page.locator(".lm-DockPanel-tabBar .lm-mod-current", has_text=file.name).wait_for()
        self.root = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)", has=page.locator(".jp-Notebook"))
        ready(page)
        self.cells = self._cells_of(file)

    @staticmethod
    def _cells_of(file: Path) -> list[Any]:
        def read() -> list[Any]:
            with suppress(NotJSONError):  # JupyterLab is saving it: empty at first
                return nbformat.read(file, as_version=4).cells  # type: ignore[no-any-return]
            return []

        return wait_until(read)

    def cell(self, number: int) -> Locator:
        return self.root.locator(f'.jp-Cell[data-windowed-list-index="{number}"]')

    def write(self, text: str) -> None:
        """Replace what the selected cell contains."""
        self.page.keyboard.press("Enter")
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(text)

    def run(self, number: int) -> Locator:
        """Run the selected cell, which has this number, by Shift+Enter, and return it when it has ended.

        A cell of text is passed over.
        """
        cell = self.cell(number)
        expect(cell).to_have_class(re.compile(r"\bjp-mod-active\b"))
        if self.cells[number].cell_type == "code":
            start(cell, lambda: self.select(number))
            ended(cell)
        elif number + 1 < len(self.cells):
            self.select(number + 1)
        return cell

    def run_up_to(self, number: int) -> None:
        """Run all cells from the first one up to this one."""
        self.select(0)
        for each in range(number + 1):
            self.run(each)

    def numbers(self, beginning: str) -> list[int]:
        """Numbers of the code cells that begin so."""
        cells = enumerate(self.cells)
        return [number for number, cell in cells if cell.cell_type == "code" and cell.source.startswith(beginning)]

    def select(self, number: int) -> None:
        """Go to a cell with the arrow keys."""
        wait_for_focus(self.root)
        self.page.keyboard.press("Escape")
        active = self.root.locator(".jp-Notebook-cell.jp-mod-active")
        for _ in range(1_000):
            expect(active).to_have_attribute("data-windowed-list-index", re.compile(r"^\d+$"))
            at = active.get_attribute("data-windowed-list-index") or ""
            if int(at) == number:
                return
            self.page.keyboard.press("ArrowDown" if number > int(at) else "ArrowUp")
            expect(active).not_to_have_attribute("data-windowed-list-index", at)
        raise AssertionError(f"the arrow keys do not lead to cell {number}")

    def reach(self, number: int, control: Locator) -> None:
        """Go from the cell with this number to a control in its output, by the Tab key."""
        control.wait_for()
        self.select(number)
        for _ in range(20):
            self.page.keyboard.press("Tab")
            if control.evaluate("control => control === document.activeElement"):
                return
        raise AssertionError(f"the Tab key does not lead from cell {number} to {control}")

    def leave(self, number: int) -> None:
        """Go back from a control in its output to the cell."""
        for _ in range(20):
            self.page.keyboard.press("Shift+Tab")
            if self.cell(number).evaluate("cell => cell === document.activeElement"):
                return
        raise AssertionError(f"Shift+Tab does not lead back to cell {number}")

    def insert_below(self, number: int, text: str) -> Locator:
        """Insert a cell below the selected one, which has this number, run it, and return it."""
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("b")
        self.cells.insert(number + 1, new_code_cell())
        self.write(text)
        return self.run(number + 1)
