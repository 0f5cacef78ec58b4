"""Matrices as pictures beside each other, on one scale of colours: a gradient, and what is left of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.ticker import MaxNLocator
from torch import Tensor

from labkit.plots.picture import Picture

_COLUMNS = 3


def heat_maps(matrices: Mapping[str, Tensor], title: str = "", rows: str = "", columns: str = "") -> Picture:
    """Draw `matrices`, each under its name: blue below 0, white at 0, red above, on one scale for all.

    Where nothing is below 0, the scale begins there. rows, columns: labels of the axes. Raises ValueError without
    matrices, and for a tensor that has not two dimensions.
    """
    if not matrices:
        raise ValueError("matrices must have one to draw, got none")
    if odd := [name for name, matrix in matrices.items() if matrix.dim() != 2]:
        raise ValueError(f"matrices must have two dimensions, got {tuple(matrices[odd[0]].shape)} for {odd[0]!r}")
    signed = any(bool((matrix < 0).any()) for matrix in matrices.values())
    values = {name: matrix.detach().float().cpu().numpy() for name, matrix in matrices.items()}
    limit = max((float(abs(array).max(initial=0)) for array in values.values()), default=0) or 1.0
    lines = math.ceil(len(values) / _COLUMNS)
    picture = Picture(height=0.9 + 1.35 * lines, alt=_describe(matrices, title))
    grid = picture.subplots(lines, min(_COLUMNS, len(values)), squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(values) :]:
        axes.set_visible(False)
    image = None
    for axes, (name, matrix) in zip(grid.flat, values.items(), strict=False):
        colours: Any = {"cmap": "RdBu_r", "vmin": -limit} if signed else {"cmap": "Reds", "vmin": 0.0}
        image = axes.imshow(matrix, vmax=limit, aspect="auto", interpolation="nearest", **colours)
        axes.set_title(name, loc="left", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    picture.suptitle(title, fontsize=11, x=0.01, ha="left")
    picture.supxlabel(columns, fontsize=9)
    picture.supylabel(rows, fontsize=9)
    assert image is not None
    bar = picture.colorbar(image, ax=grid, fraction=0.03, pad=0.02)
    bar.ax.tick_params(labelsize=8)
    return picture


def _describe(matrices: Mapping[str, Tensor], title: str) -> str:
    parts = []
    for name, matrix in matrices.items():
        share = float((matrix != 0).float().mean()) if matrix.numel() else 0.0
        parts.append(f"{name.replace(chr(10), ', ')}: {100 * share:.3g} % of the elements are not 0")
    return f"Heat maps. {title}. {'; '.join(parts)}."
