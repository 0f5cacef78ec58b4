"""Print the ranks' output while they run: `[0-3] line`, equal lines of several ranks once."""

from __future__ import annotations

import sys
import threading
import time

from labkit.rank_output.folding import OutputLine, align, fold, label, settle
from labkit.rank_output.rows import Row, Rows

_LOOK_SECONDS = 0.05
_QUIET_SECONDS = 0.1
"""Time without a new line after which all lines that ranks print at once are taken to have arrived."""
_LONGEST_WAIT_SECONDS = 0.5
"""Time after which a line is printed, whatever the ranks do."""


class LiveOutput:
    """Prints complete lines: of standard output to stdout, of standard error to stderr.

    Use it as a context manager: at its end, it prints the remaining lines.
    in_order: ranks run one at a time, as virtual ones do.
    nproc_per_node: with several nodes, for labels that name the node.
    """

    def __init__(self, in_order: bool, nproc_per_node: int | None = None) -> None:
        self._in_order = in_order
        self._nproc_per_node = nproc_per_node
        self._rows: dict[tuple[int, str], Rows] = {}
        self._waiting: list[OutputLine] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._broken = False
        self._thread = threading.Thread(target=self._print_while_running, name="labkit output", daemon=True)

    def __enter__(self) -> LiveOutput:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        with self._lock:
            for _, rows in sorted(self._rows.items()):
                rows.close()
        self._print()

    def on_output(self, rank: int, stream: str, text: str) -> None:
        """See `OnOutput`. Raises `BrokenPipeError` when nobody reads the output any more."""
        if self._broken:
            raise BrokenPipeError
        with self._lock:
            rows = self._rows.get((rank, stream))
            if rows is None:
                # rows that are printed cannot be changed any more
                rows = self._rows[rank, stream] = Rows(lambda row: self._keep(rank, stream, row), lambda: None)
            rows.write(text)

    def _keep(self, rank: int, stream: str, row: Row) -> None:
        # bars usually go to stderr, but are not errors
        shown = "stdout" if row.is_bar else stream
        self._waiting.append(OutputLine(time.monotonic(), rank, shown, row.text, row.is_bar))

    def _print_while_running(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            with self._lock:
                if not self._waiting:
                    continue
                first, last = self._waiting[0].time, self._waiting[-1].time
            now = time.monotonic()
            if now - last >= _QUIET_SECONDS or now - first >= _LONGEST_WAIT_SECONDS:
                self._print()

    def _print(self) -> None:
        with self._lock:
            lines, self._waiting = self._waiting, []
        arranged = align(lines) if self._in_order else settle(lines)
        try:
            for line in fold(arranged):
                stream = sys.stderr if line.stream == "stderr" else sys.stdout
                stream.write(f"{label(line.ranks, line.stream, self._nproc_per_node)} {line.text}\n")
            sys.stdout.flush()
            sys.stderr.flush()
        except BrokenPipeError:
            self._broken = True
