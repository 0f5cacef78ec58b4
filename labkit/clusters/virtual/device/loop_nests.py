"""Bytes that an inductor kernel reads and writes, from its C++ source.

On a CPU inductor puts several loop nests into one function, one after the other; on a GPU each is a kernel. A nest
reads and writes every tensor that it names once, from and to memory, whatever is fused into it; and no more elements of
it than it has iterations, which matters for a table in which few rows are looked up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf, prod
from typing import Any

_PARAMETERS = re.compile(r"\bkernel\(([^)]*)\)")
_NEST = re.compile(r"^    \{\n.*?^    \}$", re.MULTILINE | re.DOTALL)
_LOOP = re.compile(r"for\([^;]*;\s*(\w+)<(?:static_cast<int64_t>\((\d+)L?\))?")
_POINTER = re.compile(r"\b(?:in_out|in|out)_ptr\d+\b")
_STORE = re.compile(r"store\(((?:in_out|out)_ptr\d+)\b|atomic_add\w*\(&?((?:in_out|out)_ptr\d+)\b"
                    r"|^\s*((?:in_out|out)_ptr\d+)\[[^;\n]*\] = ", re.MULTILINE)  # fmt: skip


@dataclass(frozen=True)
class _Use:
    """One tensor in a loop nest."""

    argument: int
    elements: float
    """Maximum number that the nest reads or writes."""
    times: int
    """Number of accesses to each element: 2 if the nest reads and writes it."""


@dataclass(frozen=True)
class LoopNest:
    """A loop nest of a kernel."""

    uses: tuple[_Use, ...]

    def nbytes(self, args: Any) -> int:
        """Bytes that it reads and writes if the kernel is called with `args`."""
        total = 0
        for use in self.uses:
            tensor = args[use.argument]
            total += use.times * int(min(tensor.nbytes, use.elements * tensor.element_size()))
        return total


def loop_nests(source: str) -> list[LoopNest]:
    """The loop nests of a kernel; a kernel of another form counts as one."""
    match = _PARAMETERS.search(source)
    if match is None:
        return []
    names = [parameter.split()[-1].lstrip("*&") for parameter in match[1].split(",") if parameter.strip()]
    body = source[match.end() :]
    return [_nest(text, names) for text in _NEST.findall(body) or [body]]


def _nest(text: str, names: list[str]) -> LoopNest:
    bounds: dict[str, float] = {}
    for variable, bound in _LOOP.findall(text):
        bounds[variable] = max(bounds.get(variable, 0), int(bound) if bound else inf)
    iterations = prod(bounds.values())
    stores = [next(filter(None, groups)) for groups in _STORE.findall(text)]
    mentions = _POINTER.findall(text)
    uses = []
    for argument, name in enumerate(names):
        written, mentioned = stores.count(name), mentions.count(name)
        if mentioned:
            times = (written > 0) + (mentioned > written)
            uses.append(_Use(argument, max(written, mentioned - written) * iterations, times))
    return LoopNest(tuple(uses))
