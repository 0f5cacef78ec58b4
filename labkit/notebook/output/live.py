"""The run as a widget on the page, with a Stop button; drawn by static/live.js.

It is removed when the cell ends. The kernel cannot remove it from a page that was opened meanwhile: there the widget
replaces itself with the cell's outputs.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets
from IPython.display import clear_output, display

from labkit.notebook.output.display import RunSnapshot
from labkit.notebook.output.reopening import still_busy

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from labkit.notebook.output.runs import Record

_STATIC = Path(__file__).parent.parent / "static"
_PRESENT_SECONDS = 45.0
_KEPT = 8
"""Number of widgets of earlier runs kept for pages that are reopened."""
_kept: deque[LiveRun] = deque()


class LiveRun(anywidget.AnyWidget):
    """Shows a `RunSnapshot` on the page. on_stop: called when the Stop button is pressed."""

    _esm = _STATIC / "live.js"
    _css = _STATIC / "live.css"
    own_id = traitlets.Unicode().tag(sync=True)
    cell = traitlets.Int().tag(sync=True)
    """Number of the cell."""
    shown = traitlets.Dict().tag(sync=True)
    colours: traitlets.List[str] = traitlets.List().tag(sync=True)
    outputs: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    """The cell's outputs, in the notebook's file format; empty while it runs."""
    stopping = traitlets.Bool(False).tag(sync=True)

    def __init__(self, cell: int, shown: RunSnapshot, on_stop: Callable[[], None]) -> None:
        self.was_heard = False
        """Whether a message arrived since this was last set to False."""
        self._pace = _Pace()
        self._on_stop = on_stop
        # imports matplotlib, which the first cell's ranks need not wait for
        from labkit.plots import palette

        super().__init__(cell=cell, shown=dataclasses.asdict(shown), colours=[*palette.SERIES[:-1]])
        self.own_id = self.model_id
        self.on_msg(self._hear)
        # ipykernel 7.4 routes a page's reply to the shell that last sent to it: the main one, which is busy now
        if hasattr(self.comm, "_reply_subshell_for"):
            self.comm._reply_subshell_for = lambda data, default: default

    def _hear(self, widget: object, content: Any, buffers: object) -> None:
        self._pace.heard()
        self.was_heard = True
        if content == {"kind": "stop"} and not self.outputs:
            self.stopping = True
            self._on_stop()

    def _should_send_property(self, key: str, value: Any) -> bool:
        # limits updates only: a page that opens requests the full state and always gets it
        return bool(super()._should_send_property(key, value)) and (key != "shown" or self._pace.may_send())


class _Pace:
    """Decides when to send the next state.

    While no page is open, a server buffers everything without limit, so little is sent then. An open page reports
    every 20 seconds that it is there.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._heard = 0.0
        self._sent = 0.0

    def heard(self) -> None:
        self._heard = time.monotonic()

    def may_send(self) -> bool:
        now = time.monotonic()
        if self._heard:
            pause = 0.0 if now - self._heard < _PRESENT_SECONDS else 60.0
        else:
            # the page is still being drawn, or its messages wait while the kernel is busy
            age = now - self._began
            pause = 0.0 if age < 60 else 1.0 if age < 600 else 10.0
        if now - self._sent < pause:
            return False
        self._sent = now
        return True


class LiveView:
    """A view in the output of the running cell."""

    def __init__(self, shell: InteractiveShell, record: Record, on_stop: Callable[[], None]) -> None:
        self._shell = shell
        self._record = record
        self._on_stop = on_stop
        self._widget: LiveRun | None = None

    def show(self, shown: Any) -> None:
        if self._widget is not None:
            self._widget.shown = dataclasses.asdict(shown)
            if self._widget.was_heard:
                self._widget.was_heard = False
                still_busy(self._shell)
            return
        widget = self._widget = LiveRun(self._record.cell, shown, self._on_stop)
        bundle = widget._repr_mimebundle_()
        assert isinstance(bundle, tuple)
        kept = f" If the kernel ends before that, it is in {shown.logs}." if shown.logs else ""
        text = f"The ranks are running. Their output appears here when they have ended.{kept}"
        display({**bundle[0], "text/plain": text}, raw=True, metadata=bundle[1])

    def finish(self, text: str) -> None:
        if self._widget is not None:
            self._record.when_told = self._keep
            # if a text follows, replace the output in one step, so that the page does not jump
            clear_output(wait=bool(text))
        sys.stdout.write(text)
        # before the page gets the cell's outputs
        sys.stdout.flush()

    def _keep(self, outputs: list[dict[str, Any]]) -> None:
        """Keep the outputs for pages that were opened meanwhile."""
        widget = self._widget
        assert widget is not None
        widget.outputs = outputs
        if widget not in _kept:
            _kept.append(widget)
        while len(_kept) > _KEPT:
            _kept.popleft().close()
