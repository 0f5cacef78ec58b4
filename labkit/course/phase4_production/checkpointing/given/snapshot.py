"""One rank's part of a checkpoint: its part of the tensors, in one file, and its entry in the manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

from labkit.clusters.device import node_storage, to_host
from labkit.course.phase4_production.checkpointing.given.plain_state import encode, only_tensors, tensor_reference
from labkit.course.phase4_production.checkpointing.given.shards import Shard, ShardedState
from labkit.course.phase4_production.checkpointing.given.storage import Hole, Part
from labkit.torch_versions.dispatch import no_modes
from labkit.torch_versions.fake_tensors import FakeTensor


class Piece(NamedTuple):
    """A range of a tensor's elements."""

    key: str
    start: int
    values: Tensor
    """(stop - start,), in host memory."""


class Snapshot:
    """The state of the components at this moment, as far as this rank writes it. All ranks make one at the same time.

    format: "sharded": each rank has its shards, and about 1/N of the bytes of what all ranks have alike; "full": the
    first rank has all. copy: the components may change before it is written. Raises ValueError for other than plain
    data and dense tensors.
    """

    def __init__(self, components: Mapping[str, Any], rank: int, ranks: int, format: str, copy: bool) -> None:
        self.file = f"rank_{rank:05}.bin"
        self._rank, self._ranks, self._full = rank, ranks, format == "full"
        self._copy = copy or node_storage() is not None
        self._whole: list[tuple[str, Tensor]] = []
        self.pieces: list[Piece] = []
        self._tree: dict[str, Any] = {}
        self._own: dict[str, Any] = {}
        sharded = ShardedState(components)
        for name, component in components.items():
            state: Any
            if sharded.flats(component):
                state = sharded.state(component)
            else:
                state = component if isinstance(component, Tensor) else component.state_dict()
            if getattr(component, "of_each_rank", False):
                self._own[name] = encode(state, name, only_tensors)
            else:
                self._tree[name] = encode(state, name, self._reference)
        self._divide()

    def _reference(self, value: Any, path: str) -> dict[str, Any]:
        if isinstance(value, Shard) and not self._full:
            start, stop, at = value.written_range()
            if stop > start:
                self.pieces.append(Piece(path, start, self._host(value.value[at : at + stop - start])))
            return tensor_reference(path, value.shape, value.value.dtype)
        tensor = value.gathered() if isinstance(value, Shard) else only_tensors(value, path)
        self._whole.append((path, tensor))
        return tensor_reference(path, tuple(tensor.shape), tensor.dtype)

    def _divide(self) -> None:
        """Take this rank's range of the bytes of all whole tensors, laid out one after another."""
        total = sum(tensor.nbytes for _, tensor in self._whole)
        low, high = total * self._rank // self._ranks, total * (self._rank + 1) // self._ranks
        if self._full:
            low, high = (0, total) if self._rank == 0 else (0, 0)
        begin = 0
        for key, tensor in self._whole:
            size = tensor.element_size()
            start, stop = (min(max(-((begin - end) // size), 0), tensor.numel()) for end in (low, high))
            begin += tensor.nbytes
            if stop > start:
                self.pieces.append(Piece(key, start, self._host(tensor.reshape(-1)[start:stop])))
        self._whole.clear()

    def _host(self, values: Tensor) -> Tensor:
        return to_host(values) if self._copy or values.device.type != "cpu" else values.contiguous()

    @property
    def nbytes(self) -> int:
        """Size of this rank's file."""
        return sum(piece.values.nbytes for piece in self.pieces)

    def parts(self) -> Iterator[Part]:
        """Yield the content of this rank's file."""
        for piece in self.pieces:
            yield _bytes(piece.values)

    def describe(self) -> dict[str, Any]:
        """Return this rank's entry in the manifest, plain data. The checksums are XXH3."""
        pieces, offset = [], 0
        for key, start, values in self.pieces:
            data = _bytes(values)
            checksum = None if isinstance(data, Hole) else xxh3_64_intdigest(data)
            pieces.append([key, start, start + values.numel(), offset, values.nbytes, checksum])
            offset += values.nbytes
        tree = self._tree if self._rank == 0 else None
        return {"file": self.file, "nbytes": offset, "pieces": pieces, "own": self._own, "tree": tree}


def _bytes(values: Tensor) -> memoryview | Hole:
    if isinstance(values, FakeTensor):
        return Hole(values.nbytes)
    with no_modes():
        content: Any = values.view(torch.uint8).numpy()
        return memoryview(content)
