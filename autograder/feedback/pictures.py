"""Pictures of a submission's own run, as SVG: what each rank did when, and who sent to whom.

They show the shape of the run but no sizes: time in shares of the whole, messages by number, not by bytes. Sizes,
dtypes and contents are random for each grading and stay with the judge. Pictures use only what the scheduler observed;
names of operations and lines, which ranks report themselves, are shown only if they are known.

This does not use matplotlib, which draws the same for `run.plot()`: an SVG takes the page's colours, light or dark, is
sharp on paper, and is drawn in milliseconds for each of hundreds of submissions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from html import escape

from autograder.verdict import Picture
from labkit.checks import CheckResult, ProcessRun, Report
from labkit.clusters import Run
from labkit.clusters.rank_status import PendingOperation
from labkit.trace import Kind, Trace
from labkit.trace.busy import busy
from labkit.trace.messages import begins, messages

_COLOUR = {Kind.COMPUTE: "#0072B2", Kind.SEND: "#E69F00", Kind.RECEIVE: "#CC79A7", Kind.COLLECTIVE: "#009E73"}
"""Colours as in labkit.plots.palette, which would load matplotlib; a test compares the two."""
_TEXT_ON = {Kind.COMPUTE: "white", Kind.SEND: "black", Kind.RECEIVE: "black", Kind.COLLECTIVE: "white"}
_NAMES = {
    "send", "isend", "recv", "irecv", "all_reduce", "reduce", "broadcast", "barrier", "all_gather", "gather", "scatter",
    "reduce_scatter", "all_to_all",
}  # fmt: skip

MOST_RANKS = 16
MOST_EVENTS = 2000
MOST_ARROWS = 150

_WIDTH, _LEFT, _TOP = 760, 60, 30
_PLOT = _WIDTH - _LEFT - 12
_FONT = 'font-family="system-ui, sans-serif" font-size="12" fill="currentColor"'


def pictures(report: Report) -> tuple[Picture, ...]:
    """Return the timeline of the run that shows most, and its traffic; empty when there is nothing to show."""
    result = max((result for result in report.results if _can_be_drawn(result.run)), key=_shows, default=None)
    if result is None or result.run is None:
        return ()
    run = result.run
    how = "passed" if result.passed else "failed"
    drawn = [Picture("The timeline of your run", timeline(run), f"A run in which the check “{result.title}” {how}.")]
    if message_counts(run.trace):
        drawn.append(
            Picture("Who sent to whom", traffic(run.trace), "Number of messages from rank to rank, in that run.")
        )
    return tuple(drawn)


def _can_be_drawn(run: Run | None) -> bool:
    # the trace of real processes is only the ranks' claim
    if run is None or isinstance(run, ProcessRun):
        return False
    if run.trace.world_size > MOST_RANKS or len(run.trace.events) > MOST_EVENTS:
        return False
    if any(status.waits_in for status in run.statuses):
        return True
    return run.trace.seconds > 0 and run.trace.world_size > 1


def _shows(result: CheckResult) -> tuple[bool, bool, bool, int, float]:
    """Return a sort key for how much a picture of this run shows: failures first, then messages, ranks, time."""
    assert result.run is not None
    trace = result.run.trace
    sent = sum(message_counts(trace).values())
    return not result.passed, bool(sent), sent <= MOST_ARROWS, min(trace.world_size, 8), trace.seconds


def timeline(run: Run) -> str:
    """Draw a lane for each rank, with a row for each kind of event and an arrow for each message.

    If the run ended in a deadlock, lanes continue to the right with what each rank waits for.
    """
    trace, n = run.trace, run.trace.world_size
    waiting = {status.rank: status.waits_in for status in run.statuses if status.waits_in}
    kinds = [kind for kind in Kind if any(event.kind is kind for event in trace.events)]
    began = min((event.start for event in trace.events), default=0.0)
    ran = _PLOT * (0.5 if kinds else 0) if waiting else _PLOT
    scale = ran / trace.seconds if trace.seconds else 0.0
    lane = 40 if n <= 8 else 28
    row = (lane - 8) / max(len(kinds), 1)
    bottom = _TOP + n * lane

    def x(seconds: float) -> float:
        return _LEFT + (seconds - began) * scale

    def y(rank: int, kind: Kind) -> float:
        return _TOP + rank * lane + 4 + kinds.index(kind) * row

    parts = [_legend(kinds)]
    for rank in range(n):
        top = _TOP + rank * lane
        parts.append(
            f'<text x="{_LEFT - 8}" y="{top + lane / 2 + 4:g}" text-anchor="end">rank {rank}</text>'
            f'<rect x="{_LEFT}" y="{top + 4}" width="{_PLOT}" height="{lane - 8}" fill="currentColor" opacity=".09"/>'
        )
        if waits := waiting.get(rank):
            text = f"waits for {_awaited(waits)} …"
            parts.append(f'<text x="{_LEFT + ran + 10:g}" y="{top + lane / 2 + 4:g}">{text}</text>')
    for event, met in zip(trace.events, begins(trace), strict=True):
        # pale until all participants have joined
        met = min(met, event.end)
        for start, end, pale in ((event.start, met, ' opacity=".4"'), (met, event.end, "")):
            if end > start or event.start == event.end:
                parts.append(
                    f'<rect x="{x(start):.1f}" y="{y(event.rank, event.kind):.1f}" height="{row:.1f}" '
                    f'width="{max(x(end) - x(start), 1):.1f}" fill="{_COLOUR[event.kind]}"{pale}/>'
                )
    parts += _arrows(trace, x, y, row)
    parts += _labels(trace, x, y, row)
    if waiting:
        parts.append(
            f'<path d="M{_LEFT + ran:g} {_TOP}V{bottom}" stroke="currentColor" stroke-dasharray="4 3"/>'
            f'<text x="{_LEFT + ran:g}" y="{bottom + 16}">from here on no rank can go on</text>'
        )
    else:
        parts += _axis(bottom)
    return _svg(_WIDTH, bottom + 36, "Timeline of your run", describe(run), parts)


def _awaited(operation: PendingOperation) -> str:
    peer = f"rank {operation.peer}" if operation.peer >= 0 else "others"
    return peer + {"send": " to receive", "receive": " to send"}.get(operation.kind, "")


def _axis(bottom: float) -> list[str]:
    parts = [f'<text x="{_LEFT}" y="{bottom + 31}" opacity=".75">share of the total run time</text>']
    for share in range(0, 101, 25):
        at = _LEFT + _PLOT * share / 100
        anchor = "end" if share == 100 else "middle"
        parts.append(
            f'<line x1="{at:g}" x2="{at:g}" y1="{bottom}" y2="{bottom + 4}" stroke="currentColor"/>'
            f'<text x="{at:g}" y="{bottom + 17}" text-anchor="{anchor}">{share}%</text>'
        )
    return parts


def _legend(kinds: Sequence[Kind]) -> str:
    parts, left = [], _LEFT
    place = ["upper row: ", "lower row: "] if len(kinds) == 2 else [f"row {i + 1}: " for i in range(len(kinds))]
    for kind, where in zip(kinds, place if len(kinds) > 1 else [""] * len(kinds), strict=True):
        text = f"{where}{kind.value}"
        parts.append(
            f'<rect x="{left}" y="6" width="14" height="12" fill="{_COLOUR[kind]}"/>'
            f'<text x="{left + 19}" y="16">{text}</text>'
        )
        left += 40 + 7 * len(text)
    if any(kind is not Kind.COMPUTE for kind in kinds):
        parts.append(f'<text x="{left}" y="16">pale: waiting for the other rank</text>')
    return "".join(parts)


_Place = Callable[[float], float]
_Row = Callable[[int, Kind], float]


def _arrows(trace: Trace, x: _Place, y: _Row, row: float) -> list[str]:
    """Draw arrows from the start of each send to the end of its receive."""
    pairs = list(messages(trace))
    if len(pairs) > MOST_ARROWS:
        return []
    lines = []
    for sent, received in pairs:
        x1, y1 = x(sent.start), y(sent.rank, Kind.SEND) + row / 2
        x2, y2 = x(received.end), y(received.rank, Kind.RECEIVE) + row / 2
        length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        # the arrowhead is two short strokes back from the tip
        head = "".join(
            f"M{x2:.1f} {y2:.1f}l{-6 * dx + side * 2.5 * dy:.1f} {-6 * dy - side * 2.5 * dx:.1f}" for side in (1, -1)
        )
        lines.append(f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}{head}")
    return [f'<path d="{"".join(lines)}" fill="none" stroke="currentColor" stroke-width=".8" opacity=".7"/>']


def _labels(trace: Trace, x: _Place, y: _Row, row: float) -> list[str]:
    """Write the operation's name on each bar that is wide enough."""
    shown = []
    for event in trace.events:
        text = event.operation if event.operation in _NAMES else event.kind.value
        if row >= 9 and x(event.end) - x(event.start) > 6 * len(text) + 6:
            middle, base = (x(event.start) + x(event.end)) / 2, y(event.rank, event.kind) + row / 2 + 3.2
            shown.append(
                f'<text x="{middle:.1f}" y="{base:.1f}" text-anchor="middle" font-size="9" '
                f'fill="{_TEXT_ON[event.kind]}">{text}</text>'
            )
    return shown


def traffic(trace: Trace) -> str:
    """Draw a row for each sender, a column for each receiver: the darker, the more messages."""
    n = trace.world_size
    counts = message_counts(trace)
    most = max(counts.values(), default=1)
    cell, left, top = 34 if n <= 10 else 26, 92, 46
    width, height = left + n * cell + 12, top + n * cell + 8
    parts = [f'<text x="{left}" y="14">to rank</text>', f'<text x="8" y="{top + cell / 2 + 4}">from rank</text>']
    for rank in range(n):
        middle = rank * cell + cell / 2
        parts.append(
            f'<text x="{left + middle}" y="{top - 8}" text-anchor="middle">{rank}</text>'
            f'<text x="{left - 8}" y="{top + middle + 4}" text-anchor="end">{rank}</text>'
        )
    for source in range(n):
        for to in range(n):
            count = counts[source, to]
            at = f'x="{left + to * cell + 1}" y="{top + source * cell + 1}" width="{cell - 2}" height="{cell - 2}"'
            if not count:
                parts.append(f'<rect {at} fill="currentColor" opacity=".09"/>')
                continue
            # light to dark blue, with the number in black or white
            share = count / most
            shade = [round(light + (dark - light) * share) for light, dark in ((198, 0), (219, 82), (239, 140))]
            ink = "white" if share > 0.5 else "black"
            parts.append(
                f'<rect {at} fill="rgb({shade[0]},{shade[1]},{shade[2]})"/>'
                f'<text x="{left + to * cell + cell / 2}" y="{top + source * cell + cell / 2 + 4}" '
                f'text-anchor="middle" fill="{ink}">{count if count < 1000 else "…"}</text>'
            )
    return _svg(width, height, "Who sent to whom", describe_traffic(trace), parts)


def message_counts(trace: Trace) -> Counter[tuple[int, int]]:
    """Return the number of messages by (source, destination)."""
    sends = trace.of(kind=Kind.SEND)
    return Counter((event.rank, event.peer) for event in sends if event.peer is not None)


def describe(run: Run) -> str:
    """Describe the timeline in words, as alt text."""
    trace, n = run.trace, run.trace.world_size
    sent = sum(message_counts(trace).values())
    sentences = [f"{n} ranks, {sent} messages."]
    if collectives := len(trace.collectives()):
        sentences.append(f"{collectives} calls of the library's collectives.")
    if trace.seconds:
        times, total = busy(trace), trace.seconds * n
        shares = {
            "computing": sum(rank.compute for rank in times),
            "sending or receiving": sum(rank.exposed for rank in times),
            "waiting": sum(rank.idle for rank in times),
        }
        shown = ", ".join(f"{seconds / total:.0%} {activity}" for activity, seconds in shares.items())
        waits = max(times, key=lambda rank: rank.idle)
        sentences.append(f"Of the ranks' time: {shown}.")
        sentences.append(f"Rank {waits.rank} waits longest, {waits.idle / trace.seconds:.0%} of the run.")
    for status in run.statuses:
        if operation := status.waits_in:
            sentences.append(f"At the end rank {status.rank} waits for {_awaited(operation)}.")
    return " ".join(sentences)


def describe_traffic(trace: Trace) -> str:
    """Describe the traffic in words."""
    n, counts = trace.world_size, message_counts(trace)
    receivers: dict[int, list[int]] = defaultdict(list)
    for source, to in sorted(counts):
        receivers[source].append(to)
    if n > 2 and all((to - source) % n in (1, n - 1) for source, to in counts):
        shape = "Every message goes to a neighbour in the ring."
    elif hub := [rank for rank in range(n) if all(rank in pair for pair in counts)]:
        shape = f"Every message comes from rank {hub[0]} or goes to it."
    else:
        shape = f"A rank sends to up to {max(map(len, receivers.values()), default=0)} others."
    rows = "; ".join(
        f"rank {source}: " + ", ".join(f"{counts[source, to]} to rank {to}" for to in to_ranks)
        for source, to_ranks in receivers.items()
    )
    return f"{shape} {rows}."


def _svg(width: float, height: float, title: str, description: str, parts: Sequence[str]) -> str:
    label = escape(f"{title}. {description}", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{label}" {_FONT}>{"".join(parts)}</svg>'
    )
