"""The zoomable timeline in JupyterLab: what is drawn, and how it responds to wheel, mouse and keys."""

import base64
import io
import re
from collections.abc import Iterator

import numpy as np
import pytest
from accessibility import barriers
from in_browser import ended, opened, run
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from labkit.plots import palette
from labkit.trace import Kind

# 64 ranks and 10,240 events: compute, a ring, an all-reduce, in 40 steps of 1 ms
TRACE = """
from labkit import Run
from labkit.trace import Event, Kind, Trace
events = []
for step in range(40):
    t = step * 1e-3
    for rank in range(64):
        right, number = (rank + 1) % 64, 64 * step + rank
        events.append(Event(rank, Kind.COMPUTE, "compute", t, t + 3e-4, sequence=12))
        times = t + 3e-4, t + 6e-4
        events.append(Event(rank, Kind.SEND, "isend", *times, 2**20, right, "0", number, "Cell In[3], line 9"))
        events.append(Event(right, Kind.RECEIVE, "irecv", *times, 2**20, rank, "0", number))
        events.append(Event(rank, Kind.COLLECTIVE, "all_reduce", t + 6e-4, t + 9e-4, 2**22, None, "0", step))
trace = Trace(64, sorted(events, key=lambda e: (e.start, e.rank)), "modelled", {"0": tuple(range(64))},
              ranks_per_machine=8)
"""
MANY = """
trace = Trace(1024, [Event(r, Kind.COLLECTIVE, "all_reduce", t * 1e-3, (t + 1) * 1e-3, 8, None, "0", t)
                     for t in range(100) for r in range(1024)], "measured", {"0": tuple(range(1024))})
"""
CELLS = [TRACE, "Run([], trace).view()", MANY + "Run([], trace).view()"]
GUTTER, TOP, RIGHT = 46, 6, 12

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with opened(tmp_path_factory.mktemp("viewer"), CELLS) as page:
        ended(run(page, 0))
        yield page


class Shown:
    """A viewer on the page: its canvas, and its reported state."""

    def __init__(self, page: Page, cell: Locator) -> None:
        self.page = page
        self.root = cell.locator(".labkit-viewer")
        self.canvas = self.root.locator("canvas")
        expect(self.root).to_have_attribute("data-bars", re.compile(r"\d+"))
        self.canvas.scroll_into_view_if_needed()

    def number(self, name: str) -> float:
        return float(self.root.get_attribute(f"data-{name}") or "nan")

    @property
    def span(self) -> float:
        return self.number("to") - self.number("from")

    def until(self, condition: str) -> None:
        """Wait until `condition`, in JavaScript over `data`, holds: a frame is drawn a moment after the event."""
        root = self.root.element_handle()
        self.page.wait_for_function(f"(root) => {{ const data = root.dataset; return {condition}; }}", arg=root)

    def point(self, share: float, y: float) -> None:
        """Move the mouse to a share of the time shown, and `y` pixels down the lanes."""
        box = self.canvas.bounding_box()
        assert box
        self.page.mouse.move(box["x"] + GUTTER + share * (box["width"] - GUTTER - RIGHT), box["y"] + TOP + y)

    def pixels(self) -> np.ndarray:
        """The canvas, even where JupyterLab shows something over it."""
        url = self.canvas.evaluate("canvas => canvas.toDataURL('image/png')")
        return np.array(Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))).convert("RGB"))

    def share_of(self, colour: str) -> float:
        rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        return float((self.pixels() == rgb).all(axis=2).mean())


def test_a_reader_zooms_moves_and_points(page: Page) -> None:
    cell = run(page, 1)
    ended(cell)
    shown = Shown(page, cell)

    # first the whole run, every kind in its colour; only as many bars as can be distinguished
    assert (shown.number("from"), shown.span) == (0.0, pytest.approx(0.0399))
    assert {kind: shown.share_of(palette.KIND[kind]) > 0.02 for kind in Kind} == {
        Kind.COMPUTE: True, Kind.SEND: True, Kind.RECEIVE: False, Kind.COLLECTIVE: True,
    }  # fmt: skip
    expect(shown.root).to_contain_text("kinds share rows: the first in the legend hides the others")
    assert 1000 < shown.number("bars") <= 10_240
    assert shown.number("arrows") == 0
    assert shown.number("borders") == 7
    label = shown.canvas.get_attribute("aria-label") or ""
    assert label.startswith("Timeline of 64 ranks on 8 machines, modelled. 39.9 ms from first to last event")

    # the wheel zooms around the pointer: the time under it stays there
    shown.point(0.25, 300)
    for _ in range(7):
        page.mouse.wheel(0, -200)
    shown.until("data.to - data.from < 0.002")
    assert shown.number("from") + 0.25 * shown.span == pytest.approx(0.25 * 0.0399, rel=0.02)
    # few messages are left, so they have arrows
    assert shown.number("arrows") > 0 and shown.number("bars") < 1000

    # dragging moves, and so do the arrow keys, without leaving the cell
    before = shown.number("from")
    page.mouse.down()
    shown.point(0.35, 300)
    page.mouse.up()
    shown.until(f"data.from < {before}")
    before = shown.number("from")
    page.keyboard.press("ArrowRight")
    shown.until(f"data.from > {before}")
    assert shown.canvas.evaluate("canvas => canvas === document.activeElement")

    # + and -, Home
    before = shown.span
    page.keyboard.press("+")
    shown.until(f"data.to - data.from < {0.9 * before}")
    page.keyboard.press("-")
    shown.until(f"data.to - data.from > {0.9 * before}")
    page.keyboard.press("Home")
    shown.until("data.from == 0 && data.to > 0.0398")

    # lanes grow until there is a row for each kind, and scroll
    for _ in range(8):
        shown.root.get_by_role("button", name="taller").click()
    shown.until("data.lanes.split('-')[1] - data.lanes.split('-')[0] < 20")
    assert shown.share_of(palette.KIND[Kind.RECEIVE]) > 0.02
    shown.canvas.focus()
    for _ in range(13):
        page.keyboard.press("PageUp")
    shown.until("data.lanes.startsWith('0-')")


def test_the_tooltip_tells_what_is_under_the_pointer(page: Page) -> None:
    shown = Shown(page, page.locator(".jp-CodeCell").nth(1))
    page.keyboard.press("Home")
    # Home shows the first ranks, too, in lanes as at the beginning
    shown.until("data.from == 0 && data.to > 0.0398 && data.lanes == '0-63'")
    shown.canvas.focus()
    for _ in range(13):
        page.keyboard.press("]")
    for _ in range(13):
        page.keyboard.press("PageUp")
    shown.until("data.lanes == '0-5'")
    lane = 2 * 52  # the tallest
    row = 0.84 * lane / 4
    tooltip = shown.root.locator(".tooltip")

    shown.point(10.45e-3 / 39.9e-3, lane + 0.08 * lane + 1.5 * row)  # rank 1 sends at 10.45 ms
    expect(tooltip).to_have_text(
        "isend · rank 1\n300 µs, from 10.3 ms to 10.6 ms (modelled)\n"
        "1.05 MB to rank 2, inside machine 0 · group of ranks 0-63\nCell In[3], line 9"
    )
    shown.point(10.15e-3 / 39.9e-3, 0.08 * lane + 0.5 * row)
    expect(tooltip).to_have_text("compute · rank 0\n300 µs, from 10 ms to 10.3 ms (modelled)\n12 operators")
    shown.point(10.8e-3 / 39.9e-3, 0.08 * lane + 0.5 * row)
    expect(tooltip).to_be_hidden()


def test_the_critical_path_and_the_theme(page: Page) -> None:
    shown = Shown(page, page.locator(".jp-CodeCell").nth(1))
    page.mouse.move(0, 0)
    before = shown.share_of(palette.PATH)
    shown.root.get_by_role("button", name="what determined").click()
    shown.until("data.steps > 100")
    assert shown.share_of(palette.PATH) > before + 0.001

    assert barriers(page, ".labkit-viewer") == []
    choose_theme(page, "JupyterLab Dark")
    shown.until("'dark' in data")
    assert barriers(page, ".labkit-viewer") == []
    assert shown.share_of(palette.DARK_IDLE) > 0.05 and shown.share_of(palette.IDLE) < 0.001
    choose_theme(page, "JupyterLab Light")
    shown.until("!('dark' in data)")


def choose_theme(page: Page, name: str) -> None:
    page.locator(".lm-MenuBar-itemLabel", has_text="Settings").click()
    page.locator(".lm-Menu-itemLabel", has_text="Theme").first.click()
    page.locator(".lm-Menu-itemLabel", has_text=name).first.click()
    page.locator("#jupyterlab-splash").wait_for(state="detached")


def test_a_thousand_ranks_and_a_hundred_thousand_events(page: Page) -> None:
    cell = run(page, 2)
    ended(cell)
    shown = Shown(page, cell)
    expect(shown.root).to_contain_text("measured time")
    assert shown.root.get_attribute("data-lanes") == "0-191"
    assert 0 < shown.number("bars") <= 192 * 100
    shown.canvas.focus()
    for _ in range(6):
        page.keyboard.press("PageDown")
    shown.until("data.lanes.endsWith('-1023')")
    for _ in range(12):
        page.keyboard.press("[")
    shown.until("data.lanes == '0-1023'")
    assert shown.share_of(palette.KIND[Kind.COLLECTIVE]) > 0.5
