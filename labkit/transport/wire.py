"""Values between processes without pickle: plain data, tensors and arrays only, so that nothing is executed on arrival.

A value becomes a JSON tree plus raw buffers. A data class or a named tuple arrives as its `Fields`; a value that cannot
travel arrives as `Opaque`, which shows its repr.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from labkit.torch_versions.tensors import as_bytes

MAX_DEPTH = 32
MAX_ITEMS = 1_000_000
"""Maximum number of items of all lists and the like together; each container counts as ten itself."""
MAX_HASHED = 5_000
"""Maximum number of dict keys and set members, in total, that are not strings: their hashes can be made to collide."""
MAX_TREE_BYTES = 256 << 20
_SHORT_TEXT = 1024
"""Longer strings travel as buffers, so that the commas in the tree bound its number of items."""
_DTYPES = {
    str(d): d
    for d in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
        torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64,
        torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    )
}  # fmt: skip
_NUMPY_DTYPES = {str(np.dtype(code)): np.dtype(code) for code in "?bhilqBHILQefdFD"}
_LISTS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "Size": torch.Size}
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)


class WireError(ValueError):
    """Bytes that do not encode a value: truncated, too deep, or of an unknown kind."""


@dataclass(frozen=True)
class Opaque:
    """Placeholder for a value that cannot travel between processes; shows its type and repr."""

    type: str
    text: str

    def __repr__(self) -> str:
        return f"<{self.type} stayed on its rank: {self.text}>"


@dataclass(frozen=True)
class Fields:
    """A data class or named tuple of another process, as plain data: `found.loss` or `found.fields["loss"]`."""

    type: str
    fields: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "fields" or name not in self.fields:
            raise AttributeError(name)
        return self.fields[name]

    def __repr__(self) -> str:
        return f"{self.type}({', '.join(f'{name}={value!r}' for name, value in self.fields.items())})"


def dumps(value: Any, max_bytes: int | None = None) -> bytes:
    """Encode plain data, tensors and arrays; data classes as `Fields`, anything else as `Opaque`.

    max_bytes: limit on tensors, arrays and strings together; one that no longer fits is sent as `Opaque`.
    """
    encoder = _Encoder(max_bytes)
    tree = json.dumps(encoder.encode(value)).encode()
    return b"".join([struct.pack("<I", len(tree)), tree, *encoder.buffers])


def loads(data: bytes | memoryview, max_bytes: int | None = None) -> Any:
    """Decode the output of `dumps`. Raises `WireError` on anything else; safe on bytes from untrusted code."""
    if max_bytes is not None and len(data) > max_bytes:
        raise WireError(f"value of {len(data)} bytes, {max_bytes} are allowed")
    try:
        (length,) = struct.unpack_from("<I", data)
        text = bytes(data[4 : 4 + length])
        # checked before parsing: three bytes can encode a list, which takes twenty times as much memory
        if len(text) > MAX_TREE_BYTES or sum(map(text.count, (b"[", b"{", b","))) > 8 * MAX_ITEMS:
            raise WireError("more items than any value has")
        return _Decoder(memoryview(data)[4 + length :]).decode(json.loads(text), 0)
    except WireError:
        raise
    except (
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        struct.error,
        RecursionError,
        OverflowError,
        RuntimeError,
    ) as error:
        raise WireError(f"malformed value: {type(error).__name__}: {error}") from None


class _Encoder:
    """Builds the tree of one value. keep: False to find out only whether it can travel."""

    def __init__(self, max_bytes: int | None = None, keep: bool = True) -> None:
        self.buffers: list[bytes] = []
        self.stays: Opaque | None = None
        """The first part that cannot travel unchanged."""
        self._max_bytes = max_bytes
        self._keep = keep
        self._nbytes = 0
        self._offset = 0
        self._items = self._hashed = 0

    def encode(self, value: Any, depth: int = 0) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is int or kind is float:
            return value
        if depth > MAX_DEPTH:
            # no repr: that of a list that holds itself twice on each of many levels would never end
            return self._opaque_as(Opaque(kind.__name__, f"nested deeper than {MAX_DEPTH} levels"))
        if kind is str:
            if len(value) > _SHORT_TEXT:
                data = value.encode("utf-8", "surrogatepass")
                return self._buffered({"str": []}, "text", len(data), lambda: data)
            return value if self._fits(len(value)) else self._too_large("text", len(value))
        if kind in _MAPPINGS:
            return self._counted(value, lambda: {"dict": [self._all(pair, depth) for pair in value.items()]})
        if kind.__name__ in _LISTS and kind is _LISTS[kind.__name__]:
            return self._counted(value, lambda: {kind.__name__: self._all(value, depth)})
        if kind is bytes or kind is bytearray:
            return self._buffered({kind.__name__: []}, f"{len(value):,} bytes", len(value), lambda: bytes(value))
        if is_plain_tensor(value):
            about = {"tensor": [str(value.dtype), list(value.shape)]}
            return self._buffered(about, _shape(value), value.numel() * value.element_size(), lambda: raw_bytes(value))
        if (kind is np.ndarray or isinstance(value, np.generic)) and str(value.dtype) in _NUMPY_DTYPES:
            about = {"array" if kind is np.ndarray else "scalar": [str(value.dtype), list(value.shape)]}
            return self._buffered(about, _shape(value), value.nbytes, value.tobytes)
        if kind is complex:
            return {"complex": [value.real, value.imag]}
        if kind is range:
            return {"range": [value.start, value.stop, value.step]}
        if kind in (torch.dtype, torch.device):
            return {kind.__name__: str(value)}
        if kind is Opaque:
            return {"opaque": [value.type, value.text]}
        fields = _fields(value)
        if fields is not None:
            self.stays = self.stays or _opaque(value)
            return {"fields": [kind.__name__ if kind is not Fields else value.type, self.encode(fields, depth + 1)]}
        return self._opaque(value)

    def _all(self, values: Any, depth: int) -> list[Any]:
        return [self.encode(value, depth + 1) for value in values]

    def _counted(self, value: Any, encoded: Any) -> Any:
        self._items += 10 + len(value)
        if isinstance(value, (dict, set, frozenset)):
            self._hashed += sum(type(key) is not str for key in value)
        if self._items > MAX_ITEMS or self._hashed > MAX_HASHED:
            return self._too_large(f"{type(value).__name__} of {len(value):,}", None)
        return encoded()

    def _fits(self, nbytes: int) -> bool:
        if self._max_bytes is not None and self._nbytes + nbytes > self._max_bytes:
            return False
        self._nbytes += nbytes
        return True

    def _buffered(self, about: dict[str, list[Any]], what: str, nbytes: int, data: Any) -> Any:
        if not self._keep:
            return about
        if not self._fits(nbytes):
            return self._too_large(what, nbytes)
        raw = data()
        self.buffers.append(raw)
        self._offset += len(raw)
        ((kind, described),) = about.items()
        return {kind: [*described, self._offset - len(raw), len(raw)]}

    def _too_large(self, what: str, nbytes: int | None) -> Any:
        size = f", {_size(nbytes)}" if nbytes is not None else " items"
        limit = _size(self._max_bytes) if nbytes is not None and self._max_bytes else f"{MAX_ITEMS:,} items"
        return self._opaque_as(Opaque(what.split("[")[0], f"{what}{size}; no more than {limit} come back from a rank"))

    def _opaque(self, value: Any) -> Any:
        return self._opaque_as(_opaque(value))

    def _opaque_as(self, opaque: Opaque) -> Any:
        self.stays = self.stays or opaque
        return {"opaque": [opaque.type, opaque.text]}


def what_stays(value: Any) -> Opaque | None:
    """The first part of `value` that would arrive as `Opaque` or `Fields`; None if there is none."""
    encoder = _Encoder(keep=False)
    encoder.encode(value)
    return encoder.stays


def is_plain_tensor(value: Any) -> bool:
    """Whether the tensor arrives unchanged."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and str(value.dtype) in _DTYPES
        and value.layout is torch.strided
        and value.device.type != "meta"
    )


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """A plain tensor's elements, in order."""
    plain = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
    return bytes(as_bytes(plain).numpy().tobytes()) if plain.numel() else b""


def _fields(value: Any) -> dict[str, Any] | None:
    if type(value) is Fields:
        return dict(value.fields)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=False))
    return None


def _shape(value: torch.Tensor | np.ndarray[Any, Any] | np.generic) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _size(nbytes: int | None) -> str:
    return f"{(nbytes or 0) / (1 << 20):,.4g} MiB"


def _opaque(value: Any) -> Opaque:
    try:
        text = repr(value)
    except Exception as error:  # a learner's __repr__ may raise anything
        text = f"<repr failed: {type(error).__name__}>"
    return Opaque(type(value).__name__, text[:500])


class _Decoder:
    """Rebuilds one value from its tree."""

    def __init__(self, buffers: memoryview) -> None:
        self._buffers = buffers
        self._items = self._hashed = 0

    def decode(self, tree: Any, depth: int) -> Any:
        if depth > MAX_DEPTH + 1:  # deeper values were replaced by a placeholder on this level
            raise WireError(f"nested deeper than {MAX_DEPTH}")
        if tree is None or type(tree) in (bool, str, int, float):
            return tree
        if type(tree) is not dict or len(tree) != 1:
            raise WireError("unknown kind of value")
        ((kind, body),) = tree.items()
        if kind in _LISTS or kind == "dict":
            self._items += 10 + len(body)
            if self._items > MAX_ITEMS:
                raise WireError(f"more than {MAX_ITEMS:,} items")
        if kind in ("set", "frozenset"):
            return _LISTS[kind]([self._key(item, depth + 1) for item in body])
        if kind in _LISTS:
            return _LISTS[kind]([self.decode(item, depth + 1) for item in body])
        if kind == "dict":
            return {self._key(k, depth + 1): self.decode(v, depth + 1) for k, v in body}
        if kind == "str":
            return bytes(_slice(self._buffers, *body)).decode("utf-8", "surrogatepass")
        if kind in ("bytes", "bytearray"):
            return (bytes if kind == "bytes" else bytearray)(_slice(self._buffers, *body))
        if kind == "tensor":
            dtype, shape, offset, length = body
            return tensor_from(_slice(self._buffers, offset, length), dtype, shape)
        if kind in ("array", "scalar"):
            dtype, shape, offset, length = body
            array = _array_from(_slice(self._buffers, offset, length), dtype, shape)
            return array if kind == "array" else array[()]
        if kind == "complex":
            return complex(*map(float, body))
        if kind == "range":
            return range(*map(int, body))
        if kind == "dtype":
            return _DTYPES[body]
        if kind == "device":
            return torch.device(body)
        if kind == "fields":
            fields = self.decode(body[1], depth + 1)
            if type(fields) is not dict or not all(type(name) is str for name in fields):
                raise WireError("fields without names")
            return Fields(str(body[0])[:200], fields)
        if kind == "opaque":
            return Opaque(str(body[0])[:200], str(body[1])[:500])
        raise WireError(f"unknown kind of value: {kind!r}"[:100])

    def _key(self, tree: Any, depth: int) -> Any:
        """Decode a value that will be hashed."""
        self._hashed += type(tree) is not str
        if self._hashed > MAX_HASHED:
            raise WireError(f"more than {MAX_HASHED:,} keys that are no texts")
        return self.decode(tree, depth)


def _slice(buffers: memoryview, offset: int, length: int) -> memoryview:
    if not 0 <= offset <= offset + length <= len(buffers):
        raise WireError("a buffer reaches past the end")
    return buffers[offset : offset + length]


def _array_from(data: memoryview, dtype: str, shape: list[int]) -> np.ndarray[Any, Any]:
    if dtype not in _NUMPY_DTYPES:
        raise WireError(f"unknown dtype {dtype!r}"[:100])
    _require_size(len(data), shape, _NUMPY_DTYPES[dtype].itemsize, dtype)
    return np.frombuffer(bytes(data), dtype=_NUMPY_DTYPES[dtype]).reshape(shape).copy()


def _require_size(nbytes: int, shape: list[int], itemsize: int, dtype: str) -> int:
    """The number of elements of `shape`; raises `WireError` unless `nbytes` is their size."""
    numel = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise WireError("a shape of non-negative integers is needed")
        numel *= size
    if numel * itemsize != nbytes:
        raise WireError(f"{nbytes} bytes do not fill shape {shape} of {dtype}"[:200])
    return numel


def tensor_from(data: memoryview | bytes, dtype: str, shape: list[int]) -> torch.Tensor:
    """A new tensor of `shape` from raw bytes; raises `WireError` if they do not fit."""
    if dtype not in _DTYPES:
        raise WireError(f"unknown dtype {dtype!r}"[:100])
    numel = _require_size(len(data), shape, _DTYPES[dtype].itemsize, dtype)
    if numel == 0:
        return torch.empty(shape, dtype=_DTYPES[dtype])
    return torch.frombuffer(bytearray(data), dtype=_DTYPES[dtype]).reshape(shape)
