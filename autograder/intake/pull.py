"""A pull parser for JSON: values that the caller does not request are never built.

`json.loads` makes objects of everything: 20 MB of `[[],[],...` become half a gigabyte. Here memory is the bytes
themselves and the requested parts. Skipped parts are checked for balanced brackets only: Jupyter writes outputs that
are not quite JSON, such as NaN, and a strict parser (ijson with yajl refuses NaN, bytes that are not UTF-8, and zeros
after the end) would refuse the learner's work because of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
# a lone quote opens a string that never ends: a token of its own, or else each later quote would be tried in turn
_TOKEN = re.compile(rb"[ \t\n\r]*+(" + _STRING + rb'|[{}\[\]:,"]|[^\s"{}\[\]:,]++)', re.DOTALL)
_NESTING = re.compile(_STRING + rb'|[{}\[\]"]', re.DOTALL)
_STEP = 10
"""Cost of one nesting level, in values."""
_SPACE = re.compile(rb"[ \t\n\r]*+")
_END = re.compile(rb"[ \t\n\r\0]*\Z")


class MalformedJson(ValueError):
    """The text is not JSON, or exceeds the allowed number of values."""


class CutOff(MalformedJson):
    """The text ends in the middle of a value."""


class JsonCursor:
    """A cursor in UTF-8 encoded JSON. Each value must be consumed, by `value` or `skip`, before the next one."""

    def __init__(self, data: bytes, values: int) -> None:
        """values: maximum number of texts, lists and objects."""
        self._data = data
        self._at = 0
        self._left = values
        self.latin_1 = False
        """Whether some text was not UTF-8 and was read as Latin-1."""

    @property
    def place(self) -> str:
        """Line, from 1, up to which the text was read; in a text of one line, the byte."""
        line = self._data.count(b"\n", 0, self._at) + 1
        return f"line {line:,}" if b"\n" in self._data.strip() else f"byte {self._at + 1:,}"

    def next_is(self, start: bytes) -> bool:
        """Return whether the next value begins with this character: `{`, `[`, `"`."""
        space = _SPACE.match(self._data, self._at)
        return space is not None and self._data.startswith(start, space.end())

    def members(self) -> Iterator[str]:
        """Enter an object and yield its keys; the caller consumes each value. An overlong key is yielded as empty."""
        self._expect(b"{")
        if self.next_is(b"}"):
            self._token()
            return
        while True:
            key = self._token()
            if not key.startswith(b'"'):
                raise MalformedJson("a key is missing")
            self._expect(b":")
            yield str(self._decoded(key)) if len(key) < 200 else ""
            if self._token(b",}") == b"}":
                return

    def elements(self) -> Iterator[None]:
        """Enter a list and yield once for each element, which the caller consumes."""
        self._expect(b"[")
        if self.next_is(b"]"):
            self._token()
            return
        while True:
            yield
            if self._token(b",]") == b"]":
                return

    def value(self, limit: int) -> Any:
        """Return the next value as `json.loads` does if it takes at most `limit` bytes; else None."""
        space = _SPACE.match(self._data, self._at)
        start = space.end() if space else self._at
        self.skip()
        return self._decoded(self._data[start : self._at]) if self._at - start <= limit else None

    def skip(self) -> None:
        """Skip the next value, at any nesting depth."""
        if not (self.next_is(b"{") or self.next_is(b"[")):
            if self._token() in (b"}", b"]", b",", b":"):
                raise MalformedJson("a value is missing")
            return
        depth = 0
        for match in _NESTING.finditer(self._data, self._at):
            self._count(1)
            kind = self._data[match.start()]
            if kind in b"{[":
                depth += 1
            elif kind in b"}]":
                depth -= 1
                if depth == 0:
                    self._at = match.end()
                    return
            elif match.end() - match.start() == 1:
                break
        raise self._cut_off()

    def end(self) -> None:
        """Check that nothing follows."""
        if not _END.match(self._data, self._at):
            raise MalformedJson("something follows its end")

    def _token(self, among: bytes = b"") -> bytes:
        match = _TOKEN.match(self._data, self._at)
        if match is None or match[1] == b'"':
            raise self._cut_off()
        token = match[1]
        if among and (len(token) != 1 or token not in among):
            raise MalformedJson("a comma is missing")
        self._count(_STEP)
        self._at = match.end()
        return token

    def _cut_off(self) -> CutOff:
        self._at = len(self._data.rstrip(b" \t\n\r\0"))
        return CutOff("it ends in the middle")

    def _expect(self, token: bytes) -> None:
        if self._token() != token:
            raise MalformedJson(f"{token.decode()} is missing")

    def _count(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise MalformedJson("it holds too many values; clear its outputs")

    def _decoded(self, token: bytes) -> Any:
        try:
            text = token.decode()
        except UnicodeDecodeError:
            self.latin_1 = True
            text = token.decode("latin-1")
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise MalformedJson("a value is not closed, too deep, or holds what JSON does not allow") from None
