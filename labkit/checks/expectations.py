"""Expectations of a check: `expect(value).close_to(x)`; failures report the expected and seen values and where to look.

Values come from learners' code through a cluster: any of them may be None, a tensor of the wrong shape, or `Opaque`.
A list holds one value for each rank and is compared rank by rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn

import torch
from torch import Tensor

from labkit.checks.brief import brief
from labkit.checks.provenance import Parts, count_parts, in_words
from labkit.clusters.rank_lists import ranges
from labkit.clusters.virtual.device.uninitialized import marked
from labkit.units import exact_size, time_unit

Unit = Literal["", "bytes", "seconds"]

_EPSILONS = 16
"""Tolerance of `close_to` in epsilons of the tensor's dtype, relative to the largest expected value."""

_HUGE = 1.6e38
"""A float32 above it is a sum that may have uninitialized memory in it, each element of which is -1.69e38."""


@dataclass(frozen=True)
class WrongChunks:
    """Data for a picture: which chunk of the result is wrong on which rank, `wrong[rank][chunk]`.

    A result that is not cut is one chunk.
    """

    wrong: list[list[bool]]
    parts: Mapping[int, Sequence[Parts]] = field(default_factory=dict)
    """The parts in the wrong sums, chunk by chunk, by the rank that has the sum; empty if they cannot be counted."""


class CheckFailed(Exception):
    """The learner's code did not do what was expected."""

    def __init__(
        self,
        expected: str,
        seen: str,
        look_at: str = "",
        picture: WrongChunks | None = None,
        told: str = "",
        easier: Sequence[str] = (),
        parts: str = "",
    ) -> None:
        """seen: in full, for readers who may know the inputs. told: the part that reveals no inputs; empty: all of it.

        easier: names of easier checks of the same thing, the easiest first. parts: whose parts a wrong sum has.
        """
        super().__init__(f"expected {expected}; seen {seen}")
        self.expected, self.seen, self.look_at, self.picture, self.told = expected, seen, look_at, picture, told
        self.easier, self.parts = tuple(easier), parts


class NotMeasurable(Exception):
    """This cluster cannot measure it, such as times that are not modelled: the check is left out of the score."""


@dataclass(frozen=True)
class Expectation:
    """A value under test; each method raises `CheckFailed` unless it holds."""

    value: Any
    what: str
    look_at: str
    chunks: int | None
    easier: Sequence[str] = ()
    unit: Unit = ""
    ranks: int = 0

    def equals(self, expected: Any) -> None:
        """Equal: for tensors in dtype, shape and every element; for a list of tensors, on every rank."""
        self._compare(expected, exact=True)

    def close_to(self, expected: Any, rel: float | None = None) -> None:
        """Equal up to rounding: `rel` of the largest value, else 16 epsilons of the tensor's dtype or 1e-9."""
        self._compare(expected, exact=False, rel=rel)

    def at_most(self, limit: float) -> None:
        """A number that is at most `limit`."""
        if not (_is_number(self.value) and self.value <= limit):
            self._fail(f"at most {self._in_unit(limit)}")

    def at_least(self, limit: float) -> None:
        """A number that is at least `limit`."""
        if not (_is_number(self.value) and self.value >= limit):
            self._fail(f"at least {self._in_unit(limit)}")

    def is_one_of(self, *options: Any) -> None:
        """Equal to one of these."""
        if not any(type(self.value) is type(option) and self.value == option for option in options):
            self._fail(" or ".join(map(_shown, options)))

    def holds(self, otherwise: str) -> None:
        """`True`; `otherwise` describes what was seen if it is not."""
        if self.value is not True:
            raise CheckFailed(self.what, otherwise, self.look_at, told=otherwise, easier=self.easier)

    def contains(self, text: str) -> None:
        """A string that contains `text`."""
        if not (isinstance(self.value, str) and text in self.value):
            self._fail(f"a string containing {text!r}")

    def _compare(self, expected: Any, exact: bool, rel: float | None = None) -> None:
        if isinstance(expected, Tensor):
            where = _difference(self.value, expected, exact, rel)
            if where is not None:
                self._fail(where.expected, where.seen, told=where.told)
        elif isinstance(expected, Sequence) and any(isinstance(item, Tensor) for item in expected):
            self._compare_ranks(expected, exact, rel)
        elif exact or not _is_number(expected) or not _is_number(self.value):
            if type(self.value) is not type(expected) or self.value != expected:
                self._fail(self._in_unit(expected))
        elif not abs(self.value - expected) <= (1e-9 if rel is None else rel) * abs(expected):
            self._fail(self._in_unit(expected))

    def _compare_ranks(self, expected: Sequence[Any], exact: bool, rel: float | None) -> None:
        values = self.value if isinstance(self.value, (list, tuple)) else [self.value]
        if len(values) != len(expected):
            self._fail(f"a value from each of {len(expected)} ranks", f"{len(values)} values")
        pairs = zip(values, expected, strict=True)
        differences = [None if wanted is None else _difference(seen, wanted, exact, rel) for seen, wanted in pairs]
        bad = [rank for rank, difference in enumerate(differences) if difference is not None]
        if not bad:
            return
        first = differences[bad[0]]
        assert first is not None
        others = f" ({len(bad)} of {len(expected)} ranks are wrong: {ranges(bad)})" if len(expected) > 1 else ""
        chunks = self.chunks or 1
        parts = count_parts(values, expected, self.ranks, chunks) if self.ranks else {}
        picture = None
        if self.chunks is not None or parts:
            picture = WrongChunks([_by_chunk(difference, chunks) for difference in differences], parts)
        where, parts_text = f"on rank {bad[0]}: {first.expected}", in_words(parts)
        self._fail(where, first.seen + others, picture, first.told + others, parts_text)

    def _fail(
        self, expected: str, seen: str = "", picture: WrongChunks | None = None, told: str = "", parts: str = ""
    ) -> NoReturn:
        prefix = f"{self.what}: " if self.what else ""
        readable = self.unit and _is_number(self.value) and abs(self.value) < 1e12
        told = told or seen or (self._in_unit(self.value) if readable else brief(self.value))
        seen = seen or self._in_unit(self.value)
        raise CheckFailed(prefix + expected, seen, self.look_at, picture, told, self.easier, parts)

    def _in_unit(self, value: Any) -> str:
        """A value as one line of feedback, with its unit."""
        if not self.unit or not _is_number(value) or not math.isfinite(value):
            return _shown(value)
        if self.unit == "bytes":
            return exact_size(value)
        name, seconds = time_unit(abs(value))
        return f"{value / seconds:.5g} {name}"


def expect(
    value: Any,
    what: str = "",
    *,
    look_at: str = "",
    chunks: int | None = None,
    easier: Sequence[str] = (),
    unit: Unit = "",
    ranks: int = 0,
) -> Expectation:
    """Begin an expectation. `what` names the value, `look_at` says where to look when it is wrong.

    chunks: with a list of tensors, one for each rank, draw which of this many chunks are wrong.
    easier: names of checks of this value alone, the easiest first. If one of them has failed, the feedback points
    the learner to that one instead of this check's subject.
    unit: of a number, which failures show as MB or ms.
    ranks: with sums in which rank r's part is 10**r, the number of ranks: a failure names and draws those whose part
    is missing.
    """
    return Expectation(value, what, look_at, chunks, easier, unit, ranks)


def is_close(value: Any, expected: Tensor, rel: float | None = None) -> bool:
    """Whether `expect(value).close_to(expected)` would pass."""
    return _difference(value, expected, exact=False, rel=rel) is None


class _Difference(NamedTuple):
    """Difference of a value from the expected one."""

    expected: str
    seen: str
    told: str
    """As `seen`, for a hidden check."""
    wrong: Tensor | None = None
    """Mask of wrong elements; None for all."""


def _difference(seen: Any, expected: Tensor, exact: bool, rel: float | None) -> _Difference | None:
    """The difference, or None when they agree."""
    if not isinstance(seen, Tensor):
        return _Difference(_shown(expected), _shown(seen), brief(seen))
    if (seen.dtype, seen.shape) != (expected.dtype, expected.shape):
        return _Difference(_kind(expected), _kind(seen), brief(seen))
    wrong = _wrong(seen, expected, exact, rel)
    if not wrong.any():
        return None
    index = int(wrong.reshape(-1).nonzero()[0])
    at = f" at element {index} of {seen.numel()}" if seen.numel() > 1 else ""
    there = f"{_element(seen, index)} there" if at else _element(seen, index)
    there += _never_written(seen, wrong)
    return _Difference(f"{_element(expected, index)}{at}", there, there, wrong)


def _never_written(seen: Tensor, wrong: Tensor) -> str:
    """A note, with a leading colon, on wrong elements that look like uninitialized memory; else empty."""
    count = int((marked(seen) & wrong.reshape(-1)).sum())
    if not count:
        huge = seen.dtype is torch.float32 and bool((wrong & seen.isfinite() & (seen.abs() > _HUGE)).any())
        return ": so large a number may come of adding uninitialized memory, as from torch.empty" if huge else ""
    sure = "" if seen.element_size() >= 4 else " perhaps"
    if seen.numel() == 1:
        return f": this is{sure} uninitialized memory, as from torch.empty, that was never written"
    elements = "element was" if count == 1 else "elements were"
    return f": {count} of {seen.numel()} {elements}{sure} never written (uninitialized memory, as from torch.empty)"


def _wrong(seen: Tensor, expected: Tensor, exact: bool, rel: float | None) -> Tensor:
    if exact or not (expected.is_floating_point() or expected.is_complex()):
        return seen != expected
    wide = torch.complex128 if expected.is_complex() else torch.float64
    if rel is None:
        rel = _EPSILONS * torch.finfo(expected.dtype).eps
    scale = float(expected.to(wide).abs().max()) if expected.numel() else 0.0
    # not "more than": NaN is wrong too
    return ~((seen.to(wide) - expected.to(wide)).abs() <= rel * scale)


def _by_chunk(difference: _Difference | None, chunks: int) -> list[bool]:
    if difference is None:
        return [False] * chunks
    if difference.wrong is None:
        return [True] * chunks
    flat = difference.wrong.reshape(-1)
    length = -(-flat.numel() // chunks)
    return [bool(flat[i * length : (i + 1) * length].any()) for i in range(chunks)]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _element(tensor: Tensor, index: int) -> str:
    value = tensor.reshape(-1)[index].item()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _shown(value: Any) -> str:
    """A value as one line of feedback."""
    if isinstance(value, Tensor):
        return _kind(value)
    if type(value) is float:
        return f"{value:.6g}"
    if isinstance(value, (set, frozenset)):
        return _shown_items(sorted(value, key=repr)) or "nothing"
    if isinstance(value, (list, tuple)):
        return f"[{_shown_items(value)}]"
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _shown_items(items: Iterable[Any]) -> str:
    # a set within a list keeps its braces
    shown = [
        f"{{{_shown_items(sorted(i, key=repr))}}}" if isinstance(i, (set, frozenset)) else _shown(i) for i in items
    ]
    return ", ".join([*shown[:8], "..."] if len(shown) > 8 else shown)
