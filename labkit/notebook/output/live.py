"""The run as a widget on the page, with a Stop button. How it looks is in static/live.js.

It is taken away when the cell ends. A page that was opened meanwhile does not hear of that from the kernel: there the
widget puts into its place what the cell left.
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

from labkit.notebook.output.display import Shown
from labkit.notebook.output.reopening import still_busy
from labkit.plots import palette

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from labkit.notebook.output.runs import Record

_STATIC = Path(__file__).parent.parent / "static"
_PRESENT_SECONDS = 45.0
_KEPT = 8
"""Widgets of earlier runs, for pages that are opened again."""
_kept: deque[LiveRun] = deque()


class LiveRun(anywidget.AnyWidget):
    """What `Shown` says, on the page. on_stop: called when the Stop button is pressed."""

    _esm = _STATIC / "live.js"
    _css = _STATIC / "live.css"
    own_id = traitlets.Unicode().tag(sync=True)
    cell = traitlets.Int().tag(sync=True)
    """Number of the cell."""
    shown = traitlets.Dict().tag(sync=True)
    colours: traitlets.List[str] = traitlets.List().tag(sync=True)
    outputs: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    """What the cell left, as a notebook's file has it; empty while it runs."""
    stopping = traitlets.Bool(False).tag(sync=True)

    def __init__(self, cell: int, shown: Shown, on_stop: Callable[[], None]) -> None:
        self.was_heard = False
        """Since this was last set to False."""
        self._pace = _Pace()
        self._on_stop = on_stop
        super().__init__(cell=cell, shown=dataclasses.asdict(shown), colours=[*palette.SERIES[:-1]])
        self.own_id = self.model_id
        self.on_msg(self._hear)
        # ipykernel 7.4 sends a page's answer to the shell that spoke to it last: the main one, which is busy now
        if hasattr(self.comm, "_reply_subshell_for"):
            self.comm._reply_subshell_for = lambda data, default: default

    def _hear(self, widget: object, content: Any, buffers: object) -> None:
        self._pace.heard()
        self.was_heard = True
        if content == {"kind": "stop"} and not self.outputs:
            self.stopping = True
            self._on_stop()

    def _should_send_property(self, key: str, value: Any) -> bool:
        # asked when it changes; a page that opens asks for the state and gets it in any case
        return bool(super()._should_send_property(key, value)) and (key != "shown" or self._pace.may_send())


class _Pace:
    """When to send the next state.

    A server keeps all that is sent while no page is open, without any bound; so little is sent then. An open page says
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
            # the page is still being drawn, or cannot be heard while the kernel is busy
            age = now - self._began
            pause = 0.0 if age < 60 else 1.0 if age < 600 else 10.0
        if now - self._sent < pause:
            return False
        self._sent = now
        return True


class LiveView:
    """A place in the output of the running cell."""

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
        kept = f" If the kernel ends before that, they are in {shown.logs}." if shown.logs else ""
        text = f"The ranks are running. Their lines appear here when they have ended.{kept}"
        display({**bundle[0], "text/plain": text}, raw=True, metadata=bundle[1])

    def finish(self, text: str) -> None:
        if self._widget is not None:
            self._record.when_told = self._keep
            # with a text to follow, the output is exchanged at once and the page does not jump
            clear_output(wait=bool(text))
        sys.stdout.write(text)
        # before the page is told what the cell left
        sys.stdout.flush()

    def _keep(self, outputs: list[dict[str, Any]]) -> None:
        """For pages that were opened meanwhile."""
        widget = self._widget
        assert widget is not None
        widget.outputs = outputs
        if widget not in _kept:
            _kept.append(widget)
        while len(_kept) > _KEPT:
            _kept.popleft().close()
