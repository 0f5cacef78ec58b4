"""JSON read from front to back, by somebody who knows what they look for: what is not asked for is never built.

`json.loads` makes objects of everything: 20 MB of `[[],[],...` become half a gigabyte. Here the cost is the bytes
themselves and the parts that are taken. What is skipped is not checked beyond its brackets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
# a lone quote opens a string that never ends: a token of its own, else each later quote would be tried in turn
_TOKEN = re.compile(rb"[ \t\n\r]*+(" + _STRING + rb'|[{}\[\]:,"]|[^\s"{}\[\]:,]++)', re.DOTALL)
_NESTING = re.compile(_STRING + rb'|[{}\[\]"]', re.DOTALL)
_STEP = 10
"""What a step inside costs, in values passed."""
_SPACE = re.compile(rb"[ \t\n\r]*+")
_END = re.compile(rb"[ \t\n\r\0]*\Z")


class Malformed(ValueError):
    """The text is no JSON, or more of it than was allowed."""


class Pull:
    """A cursor in UTF-8 encoded JSON. Each value must be taken, by `value` or `skip`, before the next one."""

    def __init__(self, data: bytes, values: int) -> None:
        """values: how many texts, lists and objects may be passed."""
        self._data = data
        self._at = 0
        self._left = values
        self.latin_1 = False
        """Some text was not UTF-8 and was read as Latin-1."""

    def next_is(self, start: bytes) -> bool:
        """Does the next value begin with this character: `{`, `[`, `"`?"""
        space = _SPACE.match(self._data, self._at)
        return space is not None and self._data.startswith(start, space.end())

    def members(self) -> Iterator[str]:
        """Enter an object: its keys, each to be followed by taking its value. A key of absurd length is empty."""
        self._expect(b"{")
        if self.next_is(b"}"):
            self._token()
            return
        while True:
            key = self._token()
            if not key.startswith(b'"'):
                raise Malformed("a key is missing")
            self._expect(b":")
            yield str(self._decoded(key)) if len(key) < 200 else ""
            if self._token(b",}") == b"}":
                return

    def elements(self) -> Iterator[None]:
        """Enter a list: once for each element, which is then to be taken."""
        self._expect(b"[")
        if self.next_is(b"]"):
            self._token()
            return
        while True:
            yield
            if self._token(b",]") == b"]":
                return

    def value(self, limit: int) -> Any:
        """The next value as `json.loads` gives it, when it is written in at most `limit` bytes; else None."""
        space = _SPACE.match(self._data, self._at)
        start = space.end() if space else self._at
        self.skip()
        return self._decoded(self._data[start : self._at]) if self._at - start <= limit else None

    def skip(self) -> None:
        """Go past the next value, however deep it is."""
        if not (self.next_is(b"{") or self.next_is(b"[")):
            if self._token() in (b"}", b"]", b",", b":"):
                raise Malformed("a value is missing")
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
        raise Malformed("it ends in the middle")

    def end(self) -> None:
        """Nothing may follow."""
        if not _END.match(self._data, self._at):
            raise Malformed("something follows its end")

    def _token(self, among: bytes = b"") -> bytes:
        match = _TOKEN.match(self._data, self._at)
        if match is None or match[1] == b'"':
            raise Malformed("it ends in the middle")
        token = match[1]
        if among and (len(token) != 1 or token not in among):
            raise Malformed("a comma is missing")
        self._count(_STEP)
        self._at = match.end()
        return token

    def _expect(self, token: bytes) -> None:
        if self._token() != token:
            raise Malformed(f"{token.decode()} is missing")

    def _count(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise Malformed("it holds too many values; clear its outputs")

    def _decoded(self, token: bytes) -> Any:
        try:
            text = token.decode()
        except UnicodeDecodeError:
            self.latin_1 = True
            text = token.decode("latin-1")
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise Malformed("a value is not closed, too deep, or holds what JSON does not allow") from None
