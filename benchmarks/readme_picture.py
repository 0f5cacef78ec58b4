"""The moving picture of README.md, docs/images/ring.svg, and its still for previews of the site, docs/images/card.png.

python benchmarks/readme_picture.py              # run the ring all-reduce on virtual ranks, and draw what they did
python benchmarks/readme_picture.py --check      # compare ring.svg, and exit with 1 if it differs

Bars are the sends and receives of the run, boxes the parts of each rank's tensor. Who moves less in the system's
settings sees the end of the run. The still needs chromium.
"""

from __future__ import annotations

import argparse
import html
import sys
from pathlib import Path

from labkit import Job, virtual
from labkit.plots import palette
from labkit.plots.collectives.ring import state
from labkit.trace import Kind, Trace
from labkit.trace.rounds import message_rounds
from labkit.units import duration

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
RANKS, NUMEL = 4, 25_000_000
WIDTH, HEIGHT = 960, 352
LEFT, RIGHT, TOP, LANE = 560, 930, 74, 56
"""Borders of the lanes, and the height of one, in pixels."""
BEGIN, END, LENGTH = 1.0, 7.0, 9.0
"""Seconds at which the run begins and ends in the picture, and after which it begins again."""
CODE = """%%torchrun -n 4
import torch
import torch.distributed as dist
from labkit.exercises import ring_allreduce

dist.init_process_group()
gradient = torch.rand(25_000_000)
ring_allreduce.ring_all_reduce(gradient)"""
STYLE = """
svg { --sends: SENDS; --receives: RECEIVES; --computes: COMPUTES; }
svg { --page: #ffffff; --ink: #1b1f24; --faint: #57606a; --panel: #f4f6f8; --part: #0072b2; --idle: #e4e7ea; }
@media (prefers-color-scheme: dark) {
  svg { --page: #0d1117; --ink: #e6edf3; --faint: #9aa4ae; --panel: #1a2029; --part: #4aa8e0; --idle: #2a313b; }
}
text { font: 14px system-ui, sans-serif; fill: var(--ink); }
.code { font: 13px ui-monospace, monospace; white-space: pre; }
.small { font-size: 12.5px; fill: var(--faint); }
.page { fill: var(--page); } .panel { fill: var(--panel); } .lane { fill: var(--idle); } .part { fill: var(--part); }
.cover { fill: var(--page); animation: reveal LENGTHs linear infinite; transform: translateX(REACHpx); }
.cursor { stroke: var(--faint); stroke-width: 1.5; }
.cursor { animation: reveal LENGTHs linear infinite; transform: translateX(REACHpx); }
@keyframes reveal { 0%, FROM% { transform: translateX(0); } TO%, 100% { transform: translateX(REACHpx); } }
@media (prefers-reduced-motion: reduce) { * { animation: none !important; } }
"""


def run() -> Trace:
    """Run the solution's ring all-reduce on four GPUs of one node."""
    root = IMAGES.parent.parent
    module = (root / "solutions/phase3_multi_node/ring_allreduce.py").read_text()
    source = "\n".join(CODE.splitlines()[1:])
    job = Job(source=source, modules={"phase3_multi_node/ring_allreduce": module})
    return virtual(nproc_per_node=RANKS).run(job).raise_if_failed().trace


def drawn(trace: Trace) -> str:
    """Return the picture."""
    ends = sorted(event.end for event in trace.of(rank=0, kind=Kind.RECEIVE))
    rounds = [BEGIN + (END - BEGIN) * end / trace.seconds for end in ends]
    assert len(rounds) == len(message_rounds(trace)) == 2 * (RANKS - 1)
    style = STYLE
    for name, value in {
        "LENGTH": f"{LENGTH:g}", "FROM": f"{100 * BEGIN / LENGTH:.2f}", "TO": f"{100 * END / LENGTH:.2f}",
        "REACH": f"{RIGHT - LEFT}", "SENDS": palette.KIND[Kind.SEND], "RECEIVES": palette.KIND[Kind.RECEIVE],
        "COMPUTES": palette.KIND[Kind.COMPUTE],
    }.items():  # fmt: skip
        style = style.replace(name, value)
    steps: list[str] = []
    parts = [_code(), *_lanes(trace), _cover(), *_boxes(steps, rounds), *_captions(steps, rounds, trace)]
    alt = (
        f"A cell starts ring all-reduce on {RANKS} ranks. In {len(rounds)} rounds each rank sends a quarter of its "
        "tensor to its right neighbour and receives one from the left, until all have the sums."
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{html.escape(alt)}">\n<style>{style}{"".join(steps)}</style>\n'
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="8"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _code() -> str:
    lines = [
        f'<text class="code" x="28" y="{92 + 20 * number}">{html.escape(line)}</text>'
        for number, line in enumerate(CODE.splitlines())
    ]
    return '<rect class="panel" x="12" y="62" width="362" height="182" rx="6"/>' + "".join(lines)


def _lanes(trace: Trace) -> list[str]:
    scale = (RIGHT - LEFT) / trace.seconds
    parts = []
    for rank in range(RANKS):
        y = TOP + LANE * rank
        parts.append(f'<rect class="lane" x="{LEFT}" y="{y}" width="{RIGHT - LEFT}" height="38"/>')
        for kind, (dy, height) in {Kind.COMPUTE: (1, 36), Kind.SEND: (1, 17), Kind.RECEIVE: (20, 17)}.items():
            for event in trace.of(rank=rank, kind=kind):
                x, width = LEFT + event.start * scale, max((event.end - event.start) * scale - 1, 1)
                place = f'x="{x:.1f}" y="{y + dy}" width="{width:.1f}" height="{height}"'
                parts.append(f'<rect fill="{palette.KIND[kind]}" {place}/>')
    return parts


def _cover() -> str:
    width, height = RIGHT - LEFT + 2, LANE * RANKS
    return (
        f'<clipPath id="lanes"><rect x="{LEFT - 1}" y="{TOP - 6}" width="{width}" height="{height}"/></clipPath>'
        '<g clip-path="url(#lanes)">'
        f'<rect class="cover" x="{LEFT}" y="{TOP - 4}" width="{width}" height="{height}"/></g>'
        f'<line class="cursor" x1="{LEFT}" x2="{LEFT}" y1="{TOP - 6}" y2="{TOP + height - 12}"/>'
    )


def _boxes(style: list[str], rounds: list[float]) -> list[str]:
    """Each rank's four parts, whose colour is as strong as the share of the ranks that they are the sum of."""
    states = [state(RANKS, number) for number in range(len(rounds) + 1)]
    parts = []
    for rank in range(RANKS):
        y = TOP + LANE * rank
        parts.append(f'<text x="390" y="{y + 24}">rank {rank}</text>')
        for chunk in range(RANKS):
            shares = [len(held[rank][chunk]) / RANKS for held in states]
            name = f"part{rank}{chunk}"
            style.append(_opacity(name, [f"{share:g}" for share in shares], rounds))
            parts.append(
                f'<rect class="part {name}" x="{440 + 27 * chunk}" y="{y + 7}" width="24" height="24" rx="2"/>'
            )
    return parts


def _captions(style: list[str], rounds: list[float], trace: Trace) -> list[str]:
    size = trace.bytes_sent(0) / 1e6
    texts = ["start: each rank has its own numbers; darker: a sum of more ranks"]
    texts += [f"round {number} of {len(rounds)}: add what comes from the left" for number in range(1, RANKS)]
    texts += [f"round {number} of {len(rounds)}: keep what comes from the left" for number in range(RANKS, len(rounds))]
    texts += [f"every rank has all sums, and has sent {size:.0f} MB, in {duration(trace.seconds)}"]
    parts = [
        '<text x="28" y="42" style="font-weight:600">You write ring_all_reduce, in a cell, and run it on ranks</text>',
        f'<text class="small" x="440" y="{TOP - 14}">its tensor</text>',
        f'<text class="small" x="{LEFT}" y="{TOP - 14}">over time:',
        *(f'<tspan style="fill:var(--{name})"> ■</tspan> {name}' for name in ("sends", "receives", "computes")),
        "</text>",
        f'<text class="small" x="28" y="{HEIGHT - 14}">Recorded from a run on 4 virtual A100s: '
        "all numbers and messages are real, the time is modelled.</text>",
    ]
    for number, text in enumerate(texts):
        shown = ["1" if at == number else "0" for at in range(len(texts))]
        style.append(_opacity(f"caption{number}", shown, rounds))
        parts.append(f'<text class="caption{number}" x="440" y="{TOP + LANE * RANKS + 8}">{html.escape(text)}</text>')
    return parts


def _opacity(name: str, values: list[str], times: list[float]) -> str:
    """Style of a class that has one opacity after the other; the last one where nothing moves."""
    frames = [f"0% {{ opacity: {values[0]}; }}"]
    for time, value in zip(times, values[1:], strict=True):
        frames.append(f"{100 * time / LENGTH:.2f}% {{ opacity: {value}; }}")
    frames.append(f"100% {{ opacity: {values[-1]}; }}")
    return (
        f".{name} {{ opacity: {values[-1]}; animation: {name} {LENGTH:g}s step-end infinite; }}\n"
        f"@keyframes {name} {{ {' '.join(frames)} }}\n"
    )


def draw_still(picture: Path, into: Path) -> None:
    """Draw the picture's end into a PNG of 1200 x 630 pixels."""
    from playwright.sync_api import sync_playwright

    wide = picture.read_text().replace("<svg", '<svg style="width:1140px;height:auto"', 1)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 630}, reduced_motion="reduce")
        page.set_content(
            '<body style="margin:0;background:#fff;display:grid;place-content:center;height:630px;gap:30px;'
            'font:600 44px system-ui;text-align:center"><div>A lab for distributed training</div>'
            f"<div>{wide}</div>"
        )
        page.screenshot(path=str(into))
        browser.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if ring.svg differs")
    check, picture = parser.parse_args().check, IMAGES / "ring.svg"
    text = drawn(run())
    if check:
        same = picture.is_file() and picture.read_text() == text
        print("ring.svg is up to date" if same else "ring.svg differs: run this without --check")
        return int(not same)
    picture.write_text(text)
    draw_still(picture, IMAGES / "card.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
