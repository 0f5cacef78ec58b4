"""A zoomable timeline: `run.view()`. Drawing and interaction are in static/viewer.js.

The whole trace is sent once, as packed columns; afterwards the page needs the kernel only for the critical path.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets

from labkit.clusters.rank_lists import ranges
from labkit.plots import palette
from labkit.plots.traces.timeline import describe, heading, timeline
from labkit.trace import Kind, Trace
from labkit.trace.critical_path import critical_path
from labkit.trace.messages import message_numbers

Column = np.ndarray[Any, np.dtype[Any]]
_STATIC = Path(__file__).parent / "static"


class Viewer(anywidget.AnyWidget):
    """An interactive trace: zoom with the wheel or + and -, move by dragging or with the arrow keys, Home shows all
    times and the first ranks.

    A notebook that is read without a kernel shows `labkit.plots.traces.timeline` instead.
    """

    _esm = _STATIC / "viewer.js"
    _css = _STATIC / "viewer.css"
    about = traitlets.Dict().tag(sync=True)
    """Names, colours and the layout of `data`."""
    data = traitlets.Bytes().tag(sync=True)
    """The columns of the events, concatenated and compressed with zlib."""
    path = traitlets.Bytes().tag(sync=True)
    """The critical path as triples of float64: rank, start, end. Empty until requested."""
    path_wanted = traitlets.Bool(False).tag(sync=True)

    def __init__(self, trace: Trace, title: str = "") -> None:
        self._trace = trace
        self._title = title
        about, data = packed(trace)
        super().__init__(about={**about, "title": heading(trace, title), "alt": describe(trace)}, data=data)

    @traitlets.observe("path_wanted")
    def _add_path(self, change: object) -> None:
        steps = critical_path(self._trace).steps
        self.path = np.array([(step.rank, step.start, step.end) for step in steps], dtype="<f8").tobytes()

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = timeline(self._trace, self._title).mimebundle()
        widget = super()._repr_mimebundle_(**kwargs)
        shown, extra = widget if isinstance(widget, tuple) else (widget or {}, {})
        return {**shown, **data}, {**extra, **metadata}


def packed(trace: Trace) -> tuple[dict[str, Any], bytes]:
    """The input of viewer.js: `about` (without title and alt text) and the columns.

    Events are sorted by lane, that is by rank and kind, then by start; `lanes` holds the start index of each lane.
    """
    kinds = [kind for kind in Kind if any(event.kind is kind for event in trace.events)]
    numbers = {kind: number for number, kind in enumerate(kinds)}
    rank = _column("<i4", (event.rank for event in trace.events))
    start = _column("<f8", (event.start for event in trace.events))
    end = _column("<f8", (event.end for event in trace.events))
    lane = rank * len(kinds) + _column("<i4", (numbers[event.kind] for event in trace.events))
    order = np.lexsort((end, start, lane))
    place = np.empty(len(order), dtype="<u4")
    place[order] = np.arange(len(order))
    messages = np.array(list(message_numbers(trace)), dtype=np.int64).reshape(-1)

    operations, operation = _numbered(event.operation for event in trace.events)
    groups, group = _numbered(event.group for event in trace.events)
    lines, line = _numbered(event.line for event in trace.events)
    nbytes = _column("<f8", (event.nbytes for event in trace.events))
    peer = _column("<i4", (-1 if event.peer is None else event.peer for event in trace.events))
    sequence = _column("<i4", (min(event.sequence, 2**31 - 1) for event in trace.events))
    data = {
        "start": start[order],
        "end": end[order],
        "nbytes": nbytes[order],
        "rank": rank[order],
        "peer": peer[order],
        "sequence": sequence[order],
        "operation": operation[order],
        "group": group[order],
        "line": line[order],
        "lanes": np.searchsorted(lane[order], np.arange(trace.world_size * len(kinds) + 1)).astype("<u4"),
        "messages": place[messages],
    }
    types = {"f": "f64", "i": "i32", "u": "u32"}
    about = {
        "worldSize": trace.world_size,
        "ranksPerMachine": trace.ranks_per_machine,
        "clock": trace.clock,
        "began": min((event.start for event in trace.events), default=0.0),
        "seconds": trace.seconds,
        "kinds": [{"name": k.value, "colour": palette.KIND[k], "text": palette.TEXT_ON[k]} for k in kinds],
        "light": {"idle": palette.IDLE, "message": palette.MESSAGE, "path": palette.PATH},
        "dark": {"idle": palette.DARK_IDLE, "message": palette.DARK_MESSAGE, "path": palette.DARK_PATH},
        "operations": operations,
        "groups": [_group(trace, name) for name in groups],
        "lines": lines,
        "layout": [[name, types[column.dtype.kind], len(column)] for name, column in data.items()],
    }
    return about, zlib.compress(b"".join(column.tobytes() for column in data.values()), 1)


def _column(form: str, values: Iterable[float]) -> Column:
    return np.fromiter(values, dtype=form)


def _numbered(values: Iterable[str]) -> tuple[list[str], Column]:
    """The distinct texts, and for every value the index of its text."""
    numbers: dict[str, int] = {}
    column = _column("<u4", (numbers.setdefault(value, len(numbers)) for value in values))
    return list(numbers), column


def _group(trace: Trace, name: str) -> str:
    members = trace.groups.get(name)
    return f"group of ranks {ranges(members)}" if members else name
