"""Values returned by ranks, shown in few lines: equal ones once, tensors by shape, dtype and content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from labkit.clusters.rank_lists import ranges
from labkit.transport import wire

_WHOLE = 8
"""Most elements of a tensor that is shown in full."""
_LONGEST = 400


class RankValues(list[Any]):
    """Each rank's value; if all ranks have one, `values[2]` is rank 2's. The repr has few lines."""

    def __init__(self, values: Iterable[Any], ranks: Sequence[int] | None = None) -> None:
        """`ranks`: the ranks of the values; None for 0, 1, 2, ..."""
        super().__init__(values)
        self.ranks = list(range(len(self)) if ranks is None else ranks)

    def __repr__(self) -> str:
        alike: dict[bytes, list[int]] = {}
        for index, value in enumerate(self):
            alike.setdefault(hashlib.blake2b(wire.dumps(value)).digest(), []).append(index)
        return "\n".join(
            f"[{ranges([self.ranks[index] for index in same])}] {summary(self[same[0]])}" for same in alike.values()
        )


def summary(value: Any) -> str:
    """A value in a line or so."""
    text = _summary(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"


def _summary(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _tensor(value, "")
    if type(value) is np.ndarray:
        return _tensor(torch.from_numpy(value), "array ") if value.dtype.kind in "fiub" else _joined([repr(value)])
    if isinstance(value, np.generic):
        return str(value)
    if type(value) is list:
        return f"[{_joined(map(_summary, value))}]"
    if type(value) is tuple and len(value) > 1:
        return f"({_joined(map(_summary, value))})"
    if type(value) is dict:
        return "{" + _joined(f"{key!r}: {_summary(item)}" for key, item in value.items()) + "}"
    if type(value) is wire.Fields:
        return f"{value.type}({_joined(f'{name}={_summary(item)}' for name, item in value.fields.items())})"
    return repr(value)


def _joined(items: Iterable[str]) -> str:
    """Join as many items as can be shown: a rank may return a list of millions."""
    shown, length = [], 0
    for item in items:
        shown.append(item)
        length += len(item)
        if length > _LONGEST:
            break
    return ", ".join(shown)


def _tensor(value: torch.Tensor, prefix: str) -> str:
    kind = f"{prefix}{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    flat = value.detach().reshape(-1)
    if flat.numel() == 0:
        return kind
    if not (value.dtype.is_complex or value.dtype == torch.bool):
        # some dtypes support nothing but conversion
        flat = flat.double() if value.dtype.is_floating_point else flat.long()
    if flat.numel() <= _WHOLE:
        return f"{kind} {_plain(flat.reshape(value.shape).tolist())}"
    if bool((flat == flat[0]).all()):
        return f"{kind}, all {_plain(flat[0].item())}"
    if value.dtype.is_complex or value.dtype == torch.bool:
        return f"{kind} {_plain(flat[:4].tolist())[:-1]}, …]"
    wide = flat.double()
    finite = wide[wide.isfinite()]
    odd = {"nan": int(wide.isnan().sum()), "inf": int(wide.isinf().sum())}
    others = "".join(f", {count:,} {name}" for name, count in odd.items() if count)
    if not finite.numel():
        return f"{kind}{others}"
    low, high, mean = (f"{float(x):.6g}" for x in (finite.min(), finite.max(), finite.mean()))
    return f"{kind} from {low} to {high}, mean {mean}{others}"


def _plain(value: Any) -> str:
    """Numbers without the extra digits of single precision."""
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
