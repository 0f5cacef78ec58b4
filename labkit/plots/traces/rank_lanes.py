"""The lanes of a picture with ranks from top to bottom: all ranks or a sample, and borders between machines."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from matplotlib.axes import Axes

from labkit.plots import palette
from labkit.plots.picture import rank_ticks
from labkit.trace import Trace

MOST_LANES = 32
"""Maximum number of ranks in one picture: thinner lanes, with a row for each kind of event, cannot be distinguished."""
_MOST_SAMPLED = 16
"""Maximum number of ranks if they are sampled at equal distances."""
_LEAST_HEIGHT = 14
"""Minimum height of a machine's lanes, in pixels, for its number beside them."""


@dataclass(frozen=True)
class RankLanes:
    """The ranks that have a lane, from top to bottom."""

    ranks: Sequence[int]
    ranks_per_machine: int
    """Number of ranks on each machine; 0: unknown."""
    chosen: str = ""
    """Ranks that have a lane, in words, if some have none."""

    @classmethod
    def of(cls, trace: Trace) -> RankLanes:
        """Lanes for all ranks; if there are too many, for one whole machine and the first rank of each other machine,
        or for ranks at equal distances.
        """
        n, per_machine = trace.world_size, trace.ranks_per_machine
        if n <= MOST_LANES:
            return cls(range(n), per_machine)
        if per_machine > 1 and per_machine + trace.machines - 1 <= MOST_LANES:
            ranks = [*range(per_machine), *range(per_machine, n, per_machine)]
            return cls(ranks, per_machine, f"{len(ranks)} of {n}, machine 0 and the first rank of each other")
        step = 1
        while n / step > _MOST_SAMPLED:
            step *= 2
        return cls(range(0, n, step), per_machine, f"every {_ordinal(step)} of {n}")

    def lane(self, rank: int) -> int:
        """The rank's lane, or that of the nearest rank above it that has one."""
        return bisect_right(self.ranks, rank) - 1

    def draw(self, axes: Axes) -> None:
        """Label the ranks, and draw the borders between machines."""
        n = len(self.ranks)
        notes = [self.chosen] * bool(self.chosen) + ["one per machine"] * (self.ranks_per_machine == 1)
        axes.set_ylabel(f"rank ({'; '.join(notes)})" if notes else "rank")
        axes.set_ylim(n - 0.5, -0.5)
        if self.chosen:
            axes.set_yticks(range(n), [str(rank) for rank in self.ranks])
        else:
            rank_ticks(axes, n)
        if self.ranks_per_machine > 1 and self.ranks[-1] >= self.ranks_per_machine:
            self._draw_machines(axes)

    def _draw_machines(self, axes: Axes) -> None:
        pixels = axes.get_window_extent().height / len(self.ranks)
        labels: dict[float, str] = {}
        top = 0
        for machine, ranks in groupby(self.ranks, lambda rank: rank // self.ranks_per_machine):
            lanes = len(list(ranks))
            if machine:
                axes.axhline(top - 0.5, color=palette.NOTE, linewidth=0.8, zorder=10)
            if lanes * pixels >= _LEAST_HEIGHT:
                labels[top + (lanes - 1) / 2] = f"machine {machine}"
            top += lanes
        edge = axes.secondary_yaxis("right")
        edge.set_yticks(list(labels), list(labels.values()), fontsize=8, color=palette.NOTE)
        edge.tick_params(length=0)
        edge.spines[:].set_visible(False)


def _ordinal(number: int) -> str:
    """`2nd`, `4th`, `32nd`."""
    return f"{number}nd" if number % 10 == 2 and number % 100 != 12 else f"{number}th"
