"""Numbers in a 16-bit format: a histogram of their magnitudes, by powers of two, and the effect of rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from labkit.plots import palette
from labkit.plots.picture import Picture

_RANGE = (-52, 24)
"""Range of exponents that is drawn, the same for all values, so that pictures can be compared; values outside are drawn
at the ends.
"""
FATES = {
    "becomes 0": palette.WRONG,
    "loses digits": palette.SERIES[4],
    "kept": palette.SERIES[0],
    "becomes infinite": palette.SERIES[6],
}
"""Effects of rounding on a number, with their colours."""


def exponents(values: Tensor, scale: float = 1.0, dtype: torch.dtype = torch.float16, title: str = "") -> Picture:
    """Draw the magnitudes of `values` times `scale`, and the effect of rounding to `dtype`. Zeros are left out.

    Digits are lost below the dtype's smallest normal number, where the relative spacing of numbers grows.
    Raises ValueError if `scale` is not above 0.
    """
    if not scale > 0:
        raise ValueError(f"scale must be above 0, got {scale}")
    name = str(dtype).removeprefix("torch.")
    scaled = values.detach().flatten().double().abs() * scale
    scaled = scaled[scaled > 0]
    fate = _fates(scaled, dtype)
    powers = np.clip(np.floor(np.log2(scaled.numpy())), *_RANGE)
    edges = np.arange(_RANGE[0], _RANGE[1] + 2)
    counts = {name: np.histogram(powers[fate == number], edges)[0] for number, name in enumerate(FATES)}
    shares = {name: 100 * count / max(len(powers), 1) for name, count in counts.items()}

    picture = Picture(height=3.4)
    axes = picture.add_subplot()
    floor = np.zeros(len(edges) - 1)
    for what, colour in FATES.items():
        label = f"{what}: {shares[what].sum():.3g} %"
        axes.bar(edges[:-1], shares[what], 0.9, floor, align="edge", color=colour, label=label)
        floor += shares[what]
    info = torch.finfo(dtype)
    for value, says in ((info.smallest_normal * info.eps, "smallest"), (info.max, "largest")):
        place = np.log2(float(value))
        if _RANGE[0] < place < _RANGE[1]:
            axes.axvline(place, color="black", linewidth=1, linestyle="--")
            axes.text(
                place + 0.4, 0.98, f"{says} of\n{name}", transform=axes.get_xaxis_transform(), va="top", fontsize=8
            )
    axes.set_ylim(0, max(1.25 * floor.max(initial=0), 1))
    axes.set_xlim(*_RANGE)
    axes.set_xticks(range(-48, 25, 8), [f"$2^{{{power}}}$" for power in range(-48, 25, 8)])
    axes.set_xlabel("size of a number" if scale == 1 else f"size of a number, times {_power(scale)}")
    axes.set_ylabel("% of the numbers")
    axes.set_title(title or f"What {name} makes of them", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    picture.legend(loc="outside lower center", ncols=len(FATES), frameon=False, fontsize=9)
    summary = ", ".join(f"{share.sum():.3g} % {what}" for what, share in shares.items())
    picture.alt = f"Histogram of the sizes of numbers by powers of two, and what {name} makes of each. {summary}."
    return picture


def _fates(scaled: Tensor, dtype: torch.dtype) -> np.ndarray[Any, np.dtype[np.int64]]:
    """For each number, the index in `FATES` of its rounding effect."""
    rounded = scaled.to(dtype).double()
    fate = torch.full(scaled.shape, 2)
    fate[rounded < torch.finfo(dtype).smallest_normal] = 1
    fate[rounded == 0] = 0
    fate[rounded.isinf()] = 3
    return fate.numpy()


def _power(scale: float) -> str:
    exponent = np.log2(scale)
    return f"$2^{{{exponent:.0f}}}$" if exponent == round(exponent) else f"{scale:g}"
