"""Explains wrong entries of a site's settings, in words and with their lines, from pydantic's errors."""

from __future__ import annotations

import json
import re

from pydantic import AfterValidator
from pydantic_core import ErrorDetails

_SHOULD_BE = {
    "string_type": "text, in quotes",
    "int_type": "a whole number, without quotes",
    "float_type": "a number, without quotes",
    "bool_type": "true or false, without quotes",
    "list_type": 'a list, such as ["one", "two"]',
    "model_type": "a table: its name in brackets on a line of its own, and its entries below",
}
_LONGEST = 60


def like(pattern: str, what: str) -> AfterValidator:
    """Return a check of a text: all of it matches `pattern`. what: description of such texts, for people."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(f"{text!r} is not {what}")
        return text

    return AfterValidator(check)


def in_words(error: ErrorDetails) -> str:
    """Return what is wrong with an entry, with its value."""
    kind, message = error["type"], error["msg"]
    if kind == "missing":
        return "this entry is missing"
    if kind == "string_too_short":
        return "it is empty"
    if kind in _SHOULD_BE:
        return f"{_shown(error['input'])} should be {_SHOULD_BE[kind]}"
    if message.startswith("Input should be "):
        return f"{_shown(error['input'])} should be {message.removeprefix('Input should be ')}"
    return message.removeprefix("Value error, ")


def _shown(value: object) -> str:
    """Return a value as it may be in the file."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def line_of(text: str, place: tuple[int | str, ...]) -> int:
    """Return the line, from 1, of an entry such as ("course", "learners", 0) in a TOML text; 1 if it is not written.

    An entry of a list has the line of its own value where that is on a line by itself, else that of the list.
    """
    keys = [part for part in place if isinstance(part, str)]
    index = next((part for part in place if isinstance(part, int)), None)
    table: list[str] = []
    best, lines = 1, text.splitlines()
    for number, line in enumerate(lines, start=1):
        if header := re.match(r"\s*\[+([^\]]+)\]+", line):
            table = header[1].strip().split(".")
            if keys[: len(table)] == table:
                best = number
        elif entry := re.match(r"\s*([\w.\"-]+)\s*=", line):
            name = [*table, *entry[1].replace('"', "").split(".")]
            if len(name) > 1 and keys[: len(name)] == name:
                return number if index is None else _line_of_value(lines, number, index)
    return best


def _line_of_value(lines: list[str], first: int, index: int) -> int:
    """Return the line of the value at `index` of a list that begins at line `first`."""
    seen = -1
    for number in range(first, len(lines) + 1):
        seen += len(re.findall(r"\"[^\"]*\"|'[^']*'", lines[number - 1]))
        if seen >= index:
            return number
        if lines[number - 1].split("#")[0].rstrip().endswith("]"):
            break
    return first
