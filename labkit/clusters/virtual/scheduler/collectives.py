"""Results of collectives: from every member's tensors to every member's result.

A result that is the same for all members is one tensor, which each of them copies: with 1,024 ranks nothing here may
take a step for each pair of ranks, except for data that they exchange in pairs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.clusters.virtual.scheduler.errors import MismatchError
from labkit.clusters.virtual.scheduler.requests import Collective
from labkit.torch_versions.dispatch import DisableTorchDispatch
from labkit.torch_versions.fake_tensors import FakeTensor

FROM_ROOT, TO_ROOT = ("broadcast", "scatter"), ("reduce", "gather")
"""Collectives in which one rank alone gives data, or gets any."""
PLAIN = (Tensor, torch.nn.Parameter)

_IN_PLACE: dict[str, Any] = {
    "SUM": Tensor.add_,
    "AVG": Tensor.add_,
    "PREMUL_SUM": Tensor.add_,  # each member has multiplied already
    "PRODUCT": Tensor.mul_,
    "MIN": lambda total, tensor: torch.minimum(total, tensor, out=total),
    "MAX": lambda total, tensor: torch.maximum(total, tensor, out=total),
    "BAND": Tensor.bitwise_and_,
    "BOR": Tensor.bitwise_or_,
    "BXOR": Tensor.bitwise_xor_,
}

REDUCTIONS = tuple(_IN_PLACE)


def signature(call: Collective) -> Any:
    """The properties that must be equal on all members of one collective."""
    name, tensors = call.name, call.tensors
    if len(tensors) == 1 and name not in ("scatter", "all_to_all"):
        tensor = tensors[0]
        # with sizes that differ by rank, all members must expect the same sizes
        return name, call.op, call.root, tensor.dtype, call.expected or tensor.numel(), call.pieces
    if name == "monitored_barrier":  # each member may wait for all ranks, or not
        return name
    if name == "scatter":  # only the root has tensors
        return name, call.root
    if name == "all_to_all":
        return name, tensors[0].dtype
    return name, call.op, call.root, tuple([(t.dtype, t.numel()) for t in tensors]), call.pieces


def has_data(tensor: Tensor) -> bool:
    """False for `meta` and fake tensors, which have a shape but no data."""
    if tensor.__class__ is FakeTensor:
        return False  # without torch's query for the device, which passes through all modes
    return not tensor.is_meta and (tensor.__class__ in PLAIN or not hasattr(tensor, "fake_mode"))


def complete(calls: list[Collective]) -> list[list[Any]]:
    """Each member's results: the data for each of its tensors, flat. `calls`: one per member, by group rank.

    all_reduce, broadcast: a tensor of the same size for each tensor. reduce: on the root only. all_gather and gather
    (on the root): all members' tensors, concatenated. scatter, reduce_scatter: this member's piece. all_to_all: the
    pieces for this member, concatenated. None replaces a tensor without data. Raises MismatchError if a rank expects
    another size than is sent to it.
    """
    first, n = calls[0], len(calls)
    name = first.name
    if name in ("barrier", "monitored_barrier"):
        return [[] for _ in calls]
    _check_sizes(calls)
    given = calls[first.root].tensors if name in FROM_ROOT else first.tensors
    senders = calls[first.root : first.root + 1] if name in FROM_ROOT else calls
    if not all(has_data(call.tensors[0]) for call in senders):
        empty: list[Any] = [None] * (1 if name == "scatter" else len(given))
        return _at(first.root if name in TO_ROOT else -1, n, empty)
    # outside the operators that are recorded and accounted: this is the network's work, not a rank's
    with torch.no_grad(), DisableTorchDispatch():
        if name in ("all_reduce", "reduce"):
            return _at(first.root, n, [_reduced(calls, i) for i in range(len(given))])
        if name == "broadcast":
            return _at(-1, n, [tensor.clone() for tensor in given])
        if name in ("all_gather", "gather"):
            return _at(first.root, n, [torch.cat([c.tensors[i].reshape(-1) for c in calls]) for i in range(len(given))])
        if name == "scatter":
            return [[tensor.clone()] for tensor in given]
        if name == "reduce_scatter":
            pieces = [_cut(_reduced(calls, i), first.pieces, n) for i in range(len(given))]
            return [list(of_rank) for of_rank in zip(*pieces, strict=True)]
        if name == "all_to_all":
            return [[tensor] for tensor in _exchanged(calls, n)]
    raise KeyError(name)


def _at(root: int, n: int, results: list[Any]) -> list[list[Any]]:
    """The same results for all members, or only for the root."""
    return [results if root in (-1, rank) else [] for rank in range(n)]


def _reduced(calls: list[Collective], index: int) -> Tensor:
    """One tensor reduced over all members, in rank order."""
    op = calls[0].op
    combine = _IN_PLACE[op]
    total = calls[0].tensors[index].clone(memory_format=torch.contiguous_format)
    for call in calls[1:]:
        tensor = call.tensors[index]
        combine(total, tensor if tensor.shape == total.shape else tensor.reshape(total.shape))
    if op == "AVG":
        total.div_(len(calls), rounding_mode=None if total.is_floating_point() or total.is_complex() else "trunc")
    return total


def _cut(flat: Tensor, pieces: tuple[int, ...], n: int) -> tuple[Tensor, ...]:
    """Split a tensor into one flat piece for each member."""
    flat = flat.reshape(-1)
    return flat.split(pieces) if pieces else flat.view(n, -1 if flat.numel() else 0).unbind()


def _exchanged(calls: list[Collective], n: int) -> list[Tensor]:
    numel = calls[0].tensors[0].numel()
    if not any(call.pieces or call.tensors[0].numel() != numel for call in calls):
        together = torch.stack([call.tensors[0].reshape(n, numel // n) for call in calls], dim=1)
        return [pieces.reshape(-1) for pieces in together]
    cut = [_cut(call.tensors[0], call.pieces, n) for call in calls]
    return [torch.cat([pieces[rank] for pieces in cut]) for rank in range(n)]


def bytes_by_pair(calls: list[Collective]) -> tuple[tuple[int, ...], ...]:
    """Bytes that each member of an all_to_all sends to each; empty if they are equal, and for other collectives."""
    if calls[0].name != "all_to_all" or not any(call.pieces or call.expected for call in calls):
        return ()
    element = calls[0].tensors[0].element_size()
    sent = [_sizes(call.pieces, call.tensors[0].numel(), len(calls)) for call in calls]
    return tuple([tuple([element * numel for numel in of_rank]) for of_rank in sent])


def _check_sizes(calls: list[Collective]) -> None:
    """Check that every rank expects the size that is sent to it."""
    first, n = calls[0], len(calls)
    if first.name in ("all_gather", "gather") and first.expected:
        for call, numel in zip(calls, first.expected, strict=True):
            if call.tensors[0].numel() != numel:
                raise _unexpected(call, first, call.tensors[0].numel(), numel)
        return
    if first.name == "scatter":
        root = calls[first.root]
        for rank, call in enumerate(calls):
            if (root.tensors[rank].numel(),) != call.expected:
                raise _unexpected(root, call, root.tensors[rank].numel(), call.expected[0])
    if first.name == "all_to_all":
        even = not any(call.pieces or call.expected for call in calls)
        if even and len({call.tensors[0].numel() for call in calls}) == 1:
            return
        sent = [_sizes(call.pieces, call.tensors[0].numel(), n) for call in calls]
        for rank, call in enumerate(calls):
            expected = _sizes(call.expected, call.tensors[0].numel(), n)
            for source in range(n):
                if sent[source][rank] != expected[source]:
                    raise _unexpected(calls[source], call, sent[source][rank], expected[source])


def _sizes(given: tuple[int, ...], numel: int, n: int) -> tuple[int, ...]:
    return given or (numel // n,) * n


def _unexpected(sender: Collective, receiver: Collective, sent: int, expected: int) -> MismatchError:
    return MismatchError(
        f"in {sender.name}, rank {sender.rank} sends {sent} elements to rank {receiver.rank} "
        f"({sender.line or 'unknown line'}), which expects {expected} ({receiver.line or 'unknown line'})"
    )
