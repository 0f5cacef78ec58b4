"""`%monitor LOGDIR`: the dashboard of a monitor's log, live below the cell while other cells run."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from labkit.dashboard import DashboardView
from labkit.dashboard.server import STATIC
from labkit.dashboard.view import REFRESH_SECONDS
from labkit.notebook.magics import Magic

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

WAIT_SECONDS = 1.0
"""Seconds between two refreshes."""
QUIET_SECONDS = 600.0
"""Seconds without a new line after which the log is no longer read."""


def magics() -> tuple[Magic, ...]:
    monitor = Magic("monitor", _monitor, "Show the dashboard of a monitor's log, live.")
    monitor.option("logdir", metavar="LOGDIR", help="log_dir of the monitor; it need not exist yet")
    return (monitor,)


class LiveDashboard(anywidget.AnyWidget):
    """The page of `labkit dashboard` as a widget; a thread reads the log, also while a cell runs.

    `close()` ends the thread, as does a log that no longer grows.
    """

    _esm = STATIC / "dashboard.js"
    _css = STATIC / "dashboard.css"
    data = traitlets.Dict().tag(sync=True)
    """Last result of `DashboardView.refresh`."""

    def __init__(self, folder: str | Path) -> None:
        self._view = DashboardView(folder)
        super().__init__(data=self._view.refresh(REFRESH_SECONDS))
        self._closed = threading.Event()
        threading.Thread(target=self._follow, daemon=True, name="labkit dashboard").start()

    def close(self) -> None:
        self._closed.set()
        super().close()

    def _follow(self) -> None:
        quiet = 0.0
        while quiet < QUIET_SECONDS and not self._closed.wait(WAIT_SECONDS):
            quiet += WAIT_SECONDS
            new = self._view.refresh(REFRESH_SECONDS)
            if new != self.data and not self._closed.is_set():
                self.data, quiet = new, 0.0

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        widget = super()._repr_mimebundle_(**kwargs)
        shown, extra = widget if isinstance(widget, tuple) else (widget or {}, {})
        return {**shown, "text/plain": described(self.data)}, extra


def described(data: dict[str, Any]) -> str:
    """Return the dashboard in a few lines, for a notebook that is read without a kernel."""
    last, ranks = data["last_step"], f"{len(data['ranks'])} of {data['world_size']} ranks"
    lines = [f"{'no steps yet' if last < 0 else f'step {last}'}, {ranks}, {data['number_of_alarms']} alarms"]
    lines += [f"{alarm['cause']} on rank {alarm['rank']}, step {alarm['step']}" for alarm in data["alarms"]]
    return "\n".join(lines)


_shown: LiveDashboard | None = None


def _monitor(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> LiveDashboard:
    global _shown
    if _shown is not None:
        _shown.close()
    _shown = LiveDashboard(options.logdir)
    return _shown
