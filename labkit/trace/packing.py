"""A trace as bytes, to send it from a rank: columns of numbers and of numbered strings, fast to pack and read.

The bytes are the length of a JSON head, the head, and one column after the other. They may be forged: all is checked.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from typing import Any

import numpy as np

from labkit.trace.columns import Column, Columns, columns_of
from labkit.trace.events import Event, Kind
from labkit.trace.trace import Trace

_LENGTH = struct.Struct("<Q")
_NUMBERS = {"rank": "<i8", "start": "<f8", "end": "<f8", "nbytes": "<i8", "peer": "<i8", "sequence": "<i8"}
_TEXT = "<u4"
_NOBODY = -1
_WRONG = "a trace with values of the wrong form"


def pack(trace: Trace) -> bytes:
    """The inverse of `unpack`."""
    texts, parts = {}, []
    for name, values in zip(Event._fields, columns_of(trace.events), strict=True):
        if name not in _NUMBERS:
            numbers: dict[str, int] = {}
            values = [numbers.setdefault(value, len(numbers)) for value in values]
            texts[name] = list(numbers)
        elif name == "peer":
            values = [_NOBODY if peer is None else peer for peer in values]
        parts.append(np.array(values, dtype=_NUMBERS.get(name, _TEXT)).tobytes())
    rest = dataclasses.replace(trace, events=()).to_json()
    head = json.dumps({"trace": rest, "count": len(trace.events), "texts": texts}).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *parts])


def unpack(data: bytes) -> Trace:
    """The packed trace. Raises ValueError unless `data` is valid in every detail."""
    if len(data) < _LENGTH.size:
        raise ValueError(_WRONG)
    (length,) = _LENGTH.unpack_from(data)
    place = _LENGTH.size + length
    match json.loads(data[_LENGTH.size : place]):
        case {"trace": dict() as rest, "count": int() as count, "texts": dict() as texts} if count >= 0:
            trace = Trace.from_json(rest)
        case _:
            raise ValueError(_WRONG)
    packed: dict[str, np.ndarray[Any, Any]] = {}
    for name in Event._fields:
        form = np.dtype(_NUMBERS.get(name, _TEXT))
        if len(data) - place < count * form.itemsize:
            raise ValueError(_WRONG)
        packed[name] = np.frombuffer(data, form, count, place)
        place += count * form.itemsize
        if name not in _NUMBERS:
            known = texts.get(name)
            if type(known) is not list or set(map(type, known)) - {str}:
                raise ValueError(_WRONG)
            _within(packed[name], 0, len(known))
    if place != len(data) or trace.events or texts.keys() - set(Event._fields) or not set(texts["kind"]) <= set(Kind):
        raise ValueError(_WRONG)
    _within(packed["rank"], 0, trace.world_size)
    _within(packed["peer"], _NOBODY, trace.world_size)
    if not (np.isfinite(packed["start"]).all() and np.isfinite(packed["end"]).all()):
        raise ValueError(_WRONG)

    def make() -> list[Column]:
        columns = {name: values.tolist() for name, values in packed.items()}
        for name, known in texts.items():
            columns[name] = [known[number] for number in columns[name]]
        columns["peer"] = [None if peer == _NOBODY else peer for peer in columns["peer"]]
        return list(columns.values())

    return dataclasses.replace(trace, events=Columns(count, make))


def _within(values: np.ndarray[Any, Any], least: int, below: int) -> None:
    if values.size and not least <= int(values.min()) <= int(values.max()) < below:
        raise ValueError(_WRONG)
