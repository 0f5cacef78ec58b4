"""Bytes through each network card, for several runs side by side: a row per node, a column per rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from labkit.plots import heat, palette
from labkit.plots.picture import Picture
from labkit.trace import Trace, bytes_between_nodes
from labkit.units import byte_unit, size


def card_traffic(traces: Mapping[str, Trace], nodes: Sequence[Sequence[int]]) -> Picture:
    """Draw the bytes that each rank sends to other nodes: a panel per run, with its key as the title.

    nodes: each node's ranks. A library's collectives count as `labkit.trace.bytes_between_nodes` says. No colour means
    none. Raises `ValueError` without runs or nodes.
    """
    if not traces or not nodes:
        raise ValueError(f"there must be runs and nodes, got {len(traces)} and {len(nodes)}")
    wide = max(map(len, nodes))
    grids = {}
    for name, trace in traces.items():
        sent = bytes_between_nodes(trace, nodes)
        rows = [[sum(sent[rank]) for rank in node] + [0.0] * (wide - len(node)) for node in nodes]
        grids[name] = np.array(rows)
    most = max(float(grid.max()) for grid in grids.values())
    unit, unit_bytes = byte_unit(most)
    picture = Picture(height=0.3 * len(nodes) + 1.35, alt=_describe(grids))
    panels = picture.subplots(1, len(grids), sharey=True, squeeze=False)[0]
    picture.set_layout_engine("constrained", wspace=0.06)
    shown = None
    for axes, (name, grid) in zip(panels, grids.items(), strict=True):
        axes.set_title(name, loc="left", fontsize=10)
        shown = axes.imshow(
            np.ma.masked_equal(grid / unit_bytes, 0),
            cmap=heat.LIGHT,
            vmin=0,
            vmax=most / unit_bytes or 1,
            aspect="auto",
        )
        axes.set_xticks(range(wide))
        axes.set_xticks(np.arange(wide + 1) - 0.5, minor=True)
        axes.set_yticks(range(len(nodes)))
        axes.set_yticks(np.arange(len(nodes) + 1) - 0.5, minor=True)
        axes.grid(which="minor", color=palette.GRID, linewidth=0.6)
        axes.tick_params(which="both", length=0)
        axes.set_xlabel("rank within the node")
        for side in axes.spines.values():
            side.set_visible(False)
        for (node, rank), nbytes in np.ndenumerate(grid):
            if nbytes:
                colour = heat.ON_LARGE if nbytes > most / 2 else heat.ON_SMALL
                text = f"{nbytes / unit_bytes:.3g}"
                axes.text(rank, node, text, ha="center", va="center", fontsize=8, color=colour)
    panels[0].set_ylabel("node")
    assert shown is not None
    picture.colorbar(shown, ax=list(panels), label=f"{unit} to other nodes", shrink=0.9)
    return picture


def _describe(grids: Mapping[str, np.ndarray[tuple[int, int], np.dtype[np.float64]]]) -> str:
    parts = [
        f"{name}: {int((grid > 0).sum())} of {grid.size} ranks send to other nodes, at most {size(grid.max())} each "
        f"and {size(grid.sum(axis=1).max())} from one node"
        for name, grid in grids.items()
    ]
    return f"Bytes that each rank sends to other nodes, in {len(grids)} runs. {'. '.join(parts)}."
