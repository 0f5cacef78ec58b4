"""Latency of the sliders over a prediction: milliseconds from the key press to the painted frame.

Runs JupyterLab in headless Chromium, on a real kernel. `seen` is the time from the key press to the frame with the new
picture: the slider, the message to the kernel, the prediction with its curves, the message back, and painting. `kernel`
is the kernel's processor time for one such picture, which does not depend on other load. `nothing drawn` is a slider
whose picture is always a line of text: the share of JupyterLab, its server and its kernel.

    python benchmarks/explore.py [--keys 40]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "notebook"))

from in_browser import ended, opened, run
from playwright.sync_api import Locator, Page
from rich.console import Console
from rich.table import Table

from labkit.notebook.predicting import ask
from labkit.plots.predicted.live import live

CELL = "from labkit.notebook import explore\nexplore('gpt-13b')"
NOTHING = """import ipywidgets
slider = ipywidgets.IntSlider(description="nothing drawn", style={"description_width": "initial"})
shown = ipywidgets.HTML()
slider.observe(lambda change: setattr(shown, "value", f"<svg><text>{change['new']}</text></svg>"), names="value")
ipywidgets.VBox([slider, shown])"""
SLIDERS = ("nodes", "microbatch", "microbatches", "tensor", "recompute", "precision")
CHOSEN: dict[str, Any] = {
    "model": "gpt-13b", "cluster": "dgx-a100", "nodes": 4, "tensor": 2, "pipeline": 1, "microbatch": 2,
    "microbatches": 8, "zero": 3, "recompute": "none", "precision": "bf16",
}  # fmt: skip
WATCH = """
(cell) => {
    window.seen = [];
    let pressed = 0;
    document.addEventListener("keydown", () => { pressed = performance.now(); }, true);
    new MutationObserver((changes) => {
        // the slider's own number changes before the kernel knows
        if (!pressed || !changes.some(({ target }) => target.closest(".widget-html")?.querySelector("svg"))) return;
        const began = pressed;
        pressed = 0;
        // what comes after the next frame's callbacks and painting
        requestAnimationFrame(() => setTimeout(() => window.seen.push(performance.now() - began)));
    }).observe(cell.querySelector(".jp-OutputArea-output"), { childList: true, subtree: true });
}
"""


def slider(cell: Locator, name: str) -> Locator:
    """Return the handle of the slider with that label."""
    row = cell.locator(".widget-hslider", has=cell.page.get_by_text(name, exact=True))
    return row.locator(".noUi-handle")


def press(page: Page, cell: Locator, name: str, keys: int) -> list[float]:
    """Return milliseconds for each of `keys` presses, alternately up and down, each after the previous one is seen."""
    page.evaluate("window.seen.length = 0")
    slider(cell, name).focus()
    for number in range(keys):
        page.keyboard.press("ArrowLeft" if number % 2 else "ArrowRight")
        page.wait_for_function("count => window.seen.length >= count", arg=number + 1)
        page.wait_for_timeout(30)  # for the rest of the message after the picture
    milliseconds: list[float] = page.evaluate("window.seen")
    return milliseconds


def kernel_seconds(rounds: int = 50) -> list[float]:
    """Return the processor time of one picture."""
    seconds = []
    for number in range(rounds):
        chosen = {**CHOSEN, "tensor": 1 << number % 4, "microbatch": 1 << number % 3}
        began = time.process_time()
        live(*ask(chosen))
        seconds.append(time.process_time() - began)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=20, help="presses for each slider (default %(default)s)")
    options = parser.parse_args()
    table = Table(title="milliseconds from key to picture")
    for heading in ("slider", "median", "95 %", "longest"):
        table.add_column(heading, justify="left" if heading == "slider" else "right")
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder), [CELL, NOTHING]) as page:
        cell = run(page, 0)
        ended(cell)
        cell.locator("svg").first.wait_for()
        cell.evaluate(WATCH)
        press(page, cell, "nodes", 2)
        for name in SLIDERS:
            _row(table, name, press(page, cell, name, options.keys))
        cell = run(page, 1)
        ended(cell)
        cell.evaluate(WATCH)
        press(page, cell, "nothing drawn", 2)
        _row(table, "nothing drawn", press(page, cell, "nothing drawn", options.keys))
    work = [1e3 * seconds for seconds in kernel_seconds()]
    _row(table, "kernel, processor time", work)
    Console().print(table)


def _row(table: Table, name: str, times: list[float]) -> None:
    late = sorted(times)[int(0.95 * (len(times) - 1))]
    table.add_row(name, f"{statistics.median(times):.1f}", f"{late:.1f}", f"{max(times):.1f}")


if __name__ == "__main__":
    main()
