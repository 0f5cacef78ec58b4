"""Progress of a job: its phase in words, and the lowest of its ranks' progress bars."""

from __future__ import annotations

import re

from labkit.clusters import State
from labkit.rank_output.folding import OutputLine, fold, label
from labkit.rank_output.rows import Row

MOST_BARS = 8
"""Most bars that are all shown; of more, only the slowest and the fastest."""
_PERCENT = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d+)?) ?%")
_PARTS = re.compile(r"(?<![\d./-])(\d+) ?(?:/| of ) ?(\d+)(?![\d./-])")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def share_of(text: str) -> float | None:
    """Progress from 0 to 1 in a text such as `45%|███…` or `epoch 3/10`; None if there is none."""
    text = _COLOUR.sub("", text)
    if match := _PERCENT.search(text):
        share = float(match[1]) / 100
    elif match := _PARTS.search(text):
        share = int(match[1]) / int(match[2]) if int(match[2]) else 2.0
    else:
        return None
    return share if share <= 1 else None


class Progress:
    """The bars of all ranks."""

    def __init__(self) -> None:
        self._shares: dict[int, float] = {}

    def update(self, open_rows: dict[int, list[tuple[str, Row]]]) -> None:
        """Update from the ranks' open rows. A rank's outermost bar counts; a bar that is no longer written is done."""
        self._shares = dict.fromkeys(self._shares, 1.0)
        for rank, rows in open_rows.items():
            shares = (share_of(row.text) for _, row in rows if row.is_bar)
            first = next((share for share in shares if share is not None), None)
            if first is not None:
                self._shares[rank] = first

    @property
    def least(self) -> float | None:
        """The lowest progress of a rank, from 0 to 1; None while no rank has a bar."""
        return min(self._shares.values(), default=None)

    def bars(
        self, open_rows: dict[int, list[tuple[str, Row]]], nproc_per_node: int | None
    ) -> list[tuple[str, str, int]]:
        """The open rows to show, as (label, text, rank or -1 for several)."""
        levels = max(map(len, open_rows.values()), default=0)
        shown: list[tuple[str, str, int]] = []
        for level in range(levels):  # first the outer bars of all ranks, then the inner ones
            here = [(rank, *rows[level]) for rank, rows in open_rows.items() if level < len(rows)]
            # bars usually go to stderr, but are not errors
            lines = (OutputLine(0.0, rank, "stdout" if row.is_bar else stream, row.text) for rank, stream, row in here)
            folded = fold(lines)
            entries = [(label(line.ranks, line.stream, nproc_per_node), line.text, only(line.ranks)) for line in folded]
            if len(entries) > MOST_BARS:
                slowest, *between, fastest = sorted(entries, key=lambda bar: share_of(bar[1]) or 0.0)
                entries = [slowest, ("", f"{len(between)} more between these two", -1), fastest]
            shown += entries
        return shown[: 3 * MOST_BARS]


def only(ranks: list[int]) -> int:
    """The only rank, or -1 if there are several."""
    return ranks[0] if len(ranks) == 1 else -1


def in_words(state: State, world_size: int | None, seconds: float, limit: float | None) -> str:
    """`4 ranks running, 1 ended, 12 s of at most 60 s`."""
    doing = {"hanging": "hang", "restarting": "start again"}.get(state.phase, state.phase)
    parts = [f"{ranks_in_words(world_size)} {doing}"]
    if state.ended:
        parts.append(f"{state.ended} ended")
    parts.append(f"{duration(int(seconds))}" + (f" of at most {duration(limit)}" if limit else ""))
    return ", ".join(parts)


def ranks_in_words(world_size: int | None) -> str:
    """`4 ranks`; `ranks` if the number is not known."""
    return "ranks" if world_size is None else f"{world_size} rank{'s' * (world_size > 1)}"


def duration(seconds: float) -> str:
    """`1.5 s`, `12 s`, `3 min 5 s`, `2 h 4 min`."""
    if seconds < 60:
        return f"{seconds:.2g} s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 >= 60 else "")
