"""Lines of JSON, which travel through srun, a pod's log and pipes.

An agent's lines are numbered, so that a reader that returns to a log knows which ones it has. Bytes are in base64.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any


class LineError(ValueError):
    """A line that claims to be an agent's but is not."""


class Decoder:
    """Splits a stream into lines, without their newlines."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        """Parts of the line that has not ended yet."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Process the next bytes and yield the complete lines."""
        *whole, rest = data.split(b"\n")
        for part in whole:
            text = b"".join((*self._begun, part))
            self._begun.clear()
            yield text
        self._begun.append(rest)


def encode(content: Any) -> str:
    """JSON as one line, with its newline. ASCII, so that no text in it can end the line."""
    return json.dumps(content) + "\n"


def line(kind: str, data: bytes = b"", **fields: Any) -> str:
    """One line, with its newline."""
    content: dict[str, Any] = {"kind": kind, **fields}
    if data:
        content["data"] = base64.b64encode(data).decode()
    return encode(content)


def read(text: str) -> tuple[dict[str, Any], bytes] | None:
    """The fields and the data of one line; None for other output. Raises `LineError`."""
    if not text.startswith('{"kind": '):
        return None
    try:
        content: dict[str, Any] = json.loads(text)
        return content, base64.b64decode(content.pop("data", ""), validate=True)
    except (ValueError, TypeError, binascii.Error, RecursionError) as error:
        raise LineError(f"a line of a node that cannot be read: {error}"[:300]) from None


class LineCounter:
    """Distinguishes an agent's new lines from those that were read before."""

    def __init__(self) -> None:
        self._next = 0

    def is_new(self, fields: Mapping[str, Any]) -> bool:
        """Whether the line is new. Raises `LineError` if lines before it are missing."""
        number = fields.get("n")
        if type(number) is not int or number > self._next:
            raise LineError(f"line {self._next} of a node is missing: line {number!r} came")
        if number < self._next:
            return False
        self._next += 1
        return True
