"""Smoothness of the zoomable timeline: milliseconds per frame, in headless Chromium, while zooming and panning.

A frame is measured from one animation frame to the next, with a wheel or mouse event before each, so that both the
viewer's code and drawing its canvas count; the minimum is the 16.7 ms of a screen. `script` is the part taken by the
viewer's code. Chromium draws without a GPU here.

    python benchmarks/viewer.py [--ranks 64] [--events 10000]
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import statistics
import time

from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.table import Table

from labkit.notebook.viewer import Viewer
from labkit.trace import Event, Kind, Trace

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PAGE = "<!doctype html><style>body { margin: 8px; background: white }</style><div id=viewer style='width: 900px'></div>"
SHOW = """
async ([code, style, about, data]) => {
    const sheet = document.head.appendChild(document.createElement("style"));
    sheet.textContent = style;
    const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
    const path = new DataView(new ArrayBuffer(0));
    const state = { about: JSON.parse(about), data: new DataView(bytes.buffer), path };
    const model = { get: (name) => state[name], set() {}, save_changes() {}, on() {}, off() {} };
    const { default: widget } = await import(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
    const began = performance.now();
    await widget.render({ model, el: document.querySelector("#viewer") });
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    return performance.now() - began;
}
"""
MOVE = """
async ([what, frames]) => {
    const canvas = document.querySelector("canvas");
    const { left, top, width, height } = canvas.getBoundingClientRect();
    const send = (type, name, x, y, more) =>
        canvas.dispatchEvent(new type(name, {
            clientX: left + x, clientY: top + y, bubbles: true, cancelable: true, pointerId: 1, ...more }));
    const next = () => new Promise((done) => requestAnimationFrame(done));
    canvas.setPointerCapture = () => {}; // made events have no pointer to capture
    const times = [];
    const script = [];
    if (what === "pan") send(PointerEvent, "pointerdown", width / 2, height / 2);
    let last = await next();
    for (let i = 0; i < frames; i++) {
        const phase = (2 * Math.PI * i) / frames;
        if (what === "zoom") send(WheelEvent, "wheel", 0.6 * width, height / 3, { deltaY: i < frames / 2 ? -60 : 60 });
        if (what === "pan") {
            const x = (0.5 + 0.4 * Math.sin(5 * phase)) * width;
            send(PointerEvent, "pointermove", x, (0.5 + 0.2 * Math.sin(phase)) * height);
        }
        if (what === "point") {
            send(PointerEvent, "pointermove", (0.1 + (0.8 * i) / frames) * width, ((i % 40) * height) / 50);
        }
        const now = await next();
        script.push(performance.now() - now); // the viewer has drawn before this goes on
        times.push(now - last);
        last = now;
    }
    if (what === "pan") send(PointerEvent, "pointerup", 0, 0);
    return [times, script];
}
"""


def busy_trace(ranks: int, events: int) -> Trace:
    """Return a trace of computing, messages around a ring and all-reduces on all ranks, of at least `events` events."""
    recorded: list[Event] = []
    step = number = 0
    while len(recorded) < events:
        begin = step * 1e-3
        for rank in range(ranks):
            compute = 3e-4 + 1e-4 * ((rank * 7 + step) % 5) / 5
            recorded.append(Event(rank, Kind.COMPUTE, "compute", begin, begin + compute, sequence=12))
            sent, right = begin + compute, (rank + 1) % ranks
            line = "Cell In[3], line 9"
            end = begin + 7e-4
            recorded.append(Event(rank, Kind.SEND, "isend", sent, end, 2**20, right, "0", number + rank, line))
            recorded.append(Event(right, Kind.RECEIVE, "irecv", sent, end, 2**20, rank, "0", number + rank, line))
            recorded.append(Event(rank, Kind.COLLECTIVE, "all_reduce", end, begin + 1e-3, 2**22, None, "0", step, line))
        step, number = step + 1, number + ranks
    return Trace(ranks, sorted(recorded, key=lambda e: (e.start, e.rank)), "modelled", {"0": tuple(range(ranks))})


def show(page: Page, trace: Trace) -> tuple[float, float]:
    """Put the viewer on the page; return the seconds to pack the trace, and in the browser until it is drawn."""
    began = time.perf_counter()
    viewer = Viewer(trace)
    packing = time.perf_counter() - began
    page.set_content(PAGE)
    data = base64.b64encode(viewer.data).decode()
    return packing, page.evaluate(SHOW, [viewer._esm, viewer._css, json.dumps(viewer.about), data]) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=64, help="ranks of the trace (default %(default)s)")
    parser.add_argument("--events", type=int, default=10_000, help="events of the trace (default %(default)s)")
    parser.add_argument("--frames", type=int, default=200, help="frames of each movement (default %(default)s)")
    options = parser.parse_args()

    trace = busy_trace(options.ranks, options.events)
    table = Table(title=f"{options.ranks} ranks, {len(trace.events):,} events, {options.frames} frames each")
    for heading in ("milliseconds", "median", "95 %", "longest", "script, median", "script, longest"):
        table.add_column(heading, justify="left" if heading == "milliseconds" else "right")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 950, "height": 760})
        packing, drawing = show(page, trace)
        for movement in ("zoom", "pan", "point"):
            times, script = map(sorted, page.evaluate(MOVE, [movement, options.frames]))
            figures = [statistics.median(times), times[int(0.95 * len(times))], times[-1]]
            figures += [statistics.median(script), script[-1]]
            table.add_row(movement, *(f"{figure:.1f}" for figure in figures))
        browser.close()
    Console().print(table)
    print(f"Packing the trace took {packing:.2f} s, unpacking and drawing it for the first time {drawing:.2f} s.")


if __name__ == "__main__":
    main()
