"""The traffic matrix, bytes sent between ranks, as a heat map."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from labkit.plots import heat, palette
from labkit.plots.picture import Picture, plain, rank_ticks
from labkit.trace import Kind, Trace
from labkit.units import byte_unit, count, size

MOST_RANKS_WITH_NUMBERS = 12


def traffic_matrix(trace: Trace, title: str = "") -> Picture:
    """Draw bytes sent in messages, a row per sender and a column per receiver; no colour means none.

    If all pairs send equally much, one colour means that number of bytes; else a colour bar gives the scale.

    Only point-to-point messages count; the trace does not contain the traffic inside library collectives.
    """
    matrix = np.array(trace.traffic_matrix(), dtype=float).reshape(trace.world_size, trace.world_size)
    n, most = trace.world_size, float(matrix.max(initial=0))
    unit, unit_bytes = byte_unit(most)
    pairs = int((matrix > 0).sum())
    height = min(max(0.38 * n + 1.6, 3.0), 5.6)
    picture = Picture(
        height,
        width=height + 0.9,
        alt=f"Traffic matrix of {count(n, 'rank')}: {pairs} of {n * n} pairs exchange messages. "
        f"In all {size(matrix.sum())}, at most {size(most)} from one rank to another; {_shape(matrix)}.",
    )
    axes = picture.add_subplot()
    axes.set_title(f"{title or 'Traffic'} · bytes sent in messages", loc="left", fontsize=11)
    axes.set_xlabel("to rank")
    axes.set_ylabel("from rank")
    least = float(matrix[matrix > 0].min(initial=most))
    equal = least == most
    sent = palette.KIND[Kind.SEND]
    colours = ListedColormap([sent]) if equal else heat.LIGHT
    shown = axes.imshow(np.ma.masked_equal(matrix / unit_bytes, 0), cmap=colours, vmin=0, vmax=most / unit_bytes or 1)
    rank_ticks(axes, n, on=("x", "y"), most=16 if n < 100 else 8)
    plain(axes)
    axes.set_xticks(np.arange(n + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(n + 1) - 0.5, minor=True)
    if n <= 64:
        axes.grid(which="minor", color=palette.GRID, linewidth=0.6)
    axes.tick_params(which="minor", length=0)
    if n <= MOST_RANKS_WITH_NUMBERS:
        for (source, destination), nbytes in np.ndenumerate(matrix):
            if nbytes:
                colour = palette.DARK_TEXT if equal else heat.ON_LARGE if nbytes > most / 2 else heat.ON_SMALL
                text = f"{nbytes / unit_bytes:.3g}"
                axes.text(destination, source, text, ha="center", va="center", fontsize=8, color=colour)
    if pairs and equal:
        each = Patch(color=sent, label=f"{size(most)} to each")
        picture.legend(handles=[each], loc="outside lower center", frameon=False, fontsize=9)
    elif pairs:
        picture.colorbar(shown, ax=axes, label=unit, shrink=0.8)
    else:
        text = "no messages from rank to rank" + "\n(collectives are not counted here)" * bool(trace.collectives())
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", backgroundcolor="white")
    return picture


def _shape(matrix: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> str:
    """Describe the matrix's most visible feature in words."""
    n = len(matrix)
    pairs = {(int(a), int(b)) for a, b in np.argwhere(matrix > 0)}
    if not pairs:
        return "no rank sends any message"
    if all((b - a) % n in (1, n - 1) for a, b in pairs):
        return "every message goes to a neighbour in the ring"
    hub = next((r for r in range(n) if all(r in pair for pair in pairs)), None)
    if hub is not None:
        return f"every message comes from or goes to rank {hub}"
    return f"senders have up to {max(sum(a == r for a, _ in pairs) for r in range(n))} receivers"
