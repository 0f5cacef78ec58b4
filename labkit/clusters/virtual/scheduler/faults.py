"""Faults of a run: ranks that die, slow ranks and links, cut links, jitter.

Faults are inputs of a run, at virtual times, so a run with faults is as repeatable as one without.
injected_faults.py lets them happen.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from labkit.hardware import Topology


@dataclass(frozen=True)
class Kill:
    """The rank dies at `at`, as if by SIGKILL."""

    rank: int
    at: float


@dataclass(frozen=True)
class Slow:
    """The rank computes `factor` times as long, from `at` until `until`."""

    rank: int
    factor: float
    at: float = 0.0
    until: float = inf


@dataclass(frozen=True)
class LinkFault:
    """A rank's port, or all network cards of a node, at `factor` of their rate; 0 is cut."""

    rank: int | None
    node: int | None
    factor: float
    at: float = 0.0
    until: float = inf


@dataclass(frozen=True)
class Jitter:
    """Computing takes `exp(N(0, compute))` times as long, and a latency `exp(N(0, latency))` times."""

    seed: int
    compute: float
    latency: float


Fault = Kill | Slow | LinkFault | Jitter
_KINDS: dict[str, type[Fault]] = {kind.__name__: kind for kind in (Kill, Slow, LinkFault, Jitter)}


def kill(rank: int, at: float) -> Kill:
    """Kill the rank at `at` (virtual seconds). Its peers' operations with it fail."""
    return Kill(rank, float(at))


def slow(rank: int, factor: float, at: float = 0.0, until: float = inf) -> Slow:
    """A straggler: the rank computes `factor` times as long, from `at` until `until` (virtual seconds)."""
    if factor <= 0:
        raise ValueError(f"slow: factor must be above 0, got {factor}")
    return Slow(rank, float(factor), float(at), float(until))


def link(
    *, rank: int | None = None, node: int | None = None, factor: float = 0.0, at: float = 0.0, until: float = inf
) -> LinkFault:
    """Slow the port of `rank`, or the network cards of `node`, to `factor` of their rate; 0, the default, cuts them.

    From `at` until `until` (virtual seconds). A message that reaches a cut link fails on both sides.
    """
    if (rank is None) == (node is None):
        raise ValueError("link: give either rank=, whose port is meant, or node=, whose network cards are meant")
    if not 0 <= factor < inf:
        raise ValueError(f"link: factor must be at least 0, got {factor}")
    return LinkFault(rank, node, float(factor), float(at), float(until))


def jitter(seed: int = 0, *, compute: float = 0.05, latency: float = 0.2) -> Jitter:
    """Vary times: each is multiplied by a log-normal number of this spread, drawn from `seed`."""
    if compute < 0 or latency < 0:
        raise ValueError(f"jitter: spreads must be at least 0, got {compute} and {latency}")
    return Jitter(seed, float(compute), float(latency))


_CALLS = {"kill": kill, "slow": slow, "link": link, "jitter": jitter}
_KIND_OF: dict[str, type[Fault]] = {"kill": Kill, "slow": Slow, "link": LinkFault, "jitter": Jitter}


def parse(text: str) -> Fault:
    """Parse a fault written as a call, `kill(3, at=0.5)`. Raises ValueError that lists the possible ones."""
    example = "a fault is one of kill(3, at=0.5), slow(2, factor=1.5), link(node=1, factor=0.1), jitter(seed=0)"
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"{text!r} is no fault; {example}") from None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in _CALLS):
        raise ValueError(f"{text!r} is no fault; {example}")
    try:
        args = [ast.literal_eval(arg) for arg in call.args]
        options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except ValueError:
        raise ValueError(f"{text!r}: its arguments must be numbers; {example}") from None
    try:
        fault: Fault = _CALLS[call.func.id](*args, **options)  # type: ignore[operator]  # one signature each
    except TypeError as error:
        raise ValueError(f"{text!r}: {error}; {example}") from None
    return fault


def to_plain(faults: Sequence[Fault]) -> list[dict[str, Any]]:
    """Plain data that `from_plain` reads."""
    return [{"kind": type(fault).__name__, **asdict(fault)} for fault in faults]


def from_plain(data: Sequence[Mapping[str, Any]]) -> tuple[Fault, ...]:
    return tuple(_KINDS[entry["kind"]](**{k: v for k, v in entry.items() if k != "kind"}) for entry in data)


def check(faults: Sequence[Fault], topology: Topology) -> None:
    """Raise ValueError if a fault names a rank or a node that the topology does not have, or if `faults` is no list."""
    if not isinstance(faults, list | tuple):
        raise ValueError(f"faults must be a list, [kill(rank=1, at=0.5)] for example, got {faults!r}")
    for fault in faults:
        if not isinstance(fault, Fault):
            raise ValueError(f"faults are made by kill, slow, link and jitter, got {fault!r}")
        rank, node = getattr(fault, "rank", None), getattr(fault, "node", None)
        if rank is not None and not 0 <= rank < topology.world_size:
            raise ValueError(f"fault {_spelled(fault)}: there are ranks 0 to {topology.world_size - 1}")
        if node is not None and not 0 <= node < topology.nnodes:
            raise ValueError(f"fault {_spelled(fault)}: there are nodes 0 to {topology.nnodes - 1}")


def _spelled(fault: Fault) -> str:
    """The fault as the call that makes it."""
    name = next(name for name, kind in _KIND_OF.items() if isinstance(fault, kind))
    usual = {"at": 0.0, "until": inf, "rank": None, "node": None} if not isinstance(fault, Kill) else {}
    arguments = [f"{field}={value!r}" for field, value in asdict(fault).items() if value != usual.get(field, ...)]
    return f"{name}({', '.join(arguments)})"
