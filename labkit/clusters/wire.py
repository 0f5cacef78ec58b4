"""Values between processes without pickle: plain data and tensors only, so that nothing is executed on arrival.

A value becomes a JSON tree plus raw buffers. What cannot travel arrives as `Opaque`, which shows its repr.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

import torch

MAX_DEPTH = 32
_DTYPES = {
    str(d): d
    for d in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
        torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
    )
}  # fmt: skip


class WireError(ValueError):
    """Bytes that are not a value: truncated, too deep, or of an unknown kind."""


@dataclass(frozen=True)
class Opaque:
    """Stands for a value that cannot travel between processes; shows its type and repr."""

    type: str
    text: str

    def __repr__(self) -> str:
        return f"<{self.type} stayed on its rank: {self.text}>"


def dumps(value: Any) -> bytes:
    """Encode None, bool, int, float, str, bytes, lists, tuples, dicts, sets and tensors; anything else as `Opaque`."""
    buffers: list[bytes] = []
    tree = json.dumps(_encode(value, buffers, 0)).encode()
    return b"".join([struct.pack("<I", len(tree)), tree, *buffers])


def loads(data: bytes | memoryview, max_bytes: int | None = None) -> Any:
    """Decode what `dumps` made. Raises `WireError` on anything else; safe on bytes from untrusted code."""
    if max_bytes is not None and len(data) > max_bytes:
        raise WireError(f"value of {len(data)} bytes, {max_bytes} are allowed")
    try:
        (length,) = struct.unpack_from("<I", data)
        tree = json.loads(bytes(data[4 : 4 + length]))
        return _decode(tree, memoryview(data)[4 + length :], 0)
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


def _encode(value: Any, buffers: list[bytes], depth: int) -> Any:
    if depth > MAX_DEPTH:
        return _opaque(value)
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return {"int": str(value)}
    if kind is float:
        return {"float": value.hex()}
    if kind in (list, tuple, set):
        return {kind.__name__: [_encode(item, buffers, depth + 1) for item in value]}
    if kind is dict:
        return {"dict": [[_encode(k, buffers, depth + 1), _encode(v, buffers, depth + 1)] for k, v in value.items()]}
    if kind is bytes:
        return {"bytes": _buffer(value, buffers)}
    if _is_plain_tensor(value):
        plain = value.detach().cpu().contiguous()
        data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        return {"tensor": [str(value.dtype), list(value.shape), *_buffer(data, buffers)]}
    if kind is Opaque:
        return {"opaque": [value.type, value.text]}
    return _opaque(value)


def what_stays(value: Any, depth: int = 0) -> Opaque | None:
    """The first part of `value` that `dumps` would encode as `Opaque`; None when all of it can travel."""
    kind = type(value)
    if depth <= MAX_DEPTH:
        if kind in (list, tuple, set, dict):
            parts = [part for item in value.items() for part in item] if kind is dict else value
            return next((found for part in parts if (found := what_stays(part, depth + 1))), None)
        if value is None or kind in (bool, str, int, float, bytes) or _is_plain_tensor(value):
            return None
    return Opaque(*_opaque(value)["opaque"])


def _is_plain_tensor(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter) and str(value.dtype) in _DTYPES and not value.is_sparse


def _opaque(value: Any) -> dict[str, list[str]]:
    try:
        text = repr(value)
    except Exception as error:  # a learner's __repr__ may raise anything
        text = f"<repr failed: {type(error).__name__}>"
    return {"opaque": [type(value).__name__, text[:500]]}


def _buffer(data: bytes, buffers: list[bytes]) -> list[int]:
    offset = sum(map(len, buffers))
    buffers.append(data)
    return [offset, len(data)]


def _decode(tree: Any, buffers: memoryview, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise WireError(f"nested deeper than {MAX_DEPTH}")
    if tree is None or type(tree) in (bool, str):
        return tree
    if type(tree) is not dict or len(tree) != 1:
        raise WireError("unknown kind of value")
    ((kind, body),) = tree.items()
    if kind == "int":
        return int(body)
    if kind == "float":
        return float.fromhex(body)
    if kind in ("list", "tuple", "set"):
        items = [_decode(item, buffers, depth + 1) for item in body]
        return {"list": list, "tuple": tuple, "set": set}[kind](items)
    if kind == "dict":
        return {_decode(k, buffers, depth + 1): _decode(v, buffers, depth + 1) for k, v in body}
    if kind == "bytes":
        return bytes(_slice(buffers, *body))
    if kind == "tensor":
        dtype, shape, offset, length = body
        return tensor_from(_slice(buffers, offset, length), dtype, shape)
    if kind == "opaque":
        return Opaque(str(body[0])[:200], str(body[1])[:500])
    raise WireError(f"unknown kind of value: {kind!r}"[:100])


def _slice(buffers: memoryview, offset: int, length: int) -> memoryview:
    if not 0 <= offset <= offset + length <= len(buffers):
        raise WireError("a buffer reaches past the end")
    return buffers[offset : offset + length]


def tensor_from(data: memoryview | bytes, dtype: str, shape: list[int]) -> torch.Tensor:
    """A new tensor of `shape` out of raw bytes; raises `WireError` when they do not fit."""
    if dtype not in _DTYPES:
        raise WireError(f"unknown dtype {dtype!r}"[:100])
    numel = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise WireError("a shape of non-negative integers is needed")
        numel *= size
    if numel * _DTYPES[dtype].itemsize != len(data):
        raise WireError(f"{len(data)} bytes do not fill shape {shape} of {dtype}")
    if numel == 0:
        return torch.empty(shape, dtype=_DTYPES[dtype])
    return torch.frombuffer(bytearray(data), dtype=_DTYPES[dtype]).reshape(shape)
