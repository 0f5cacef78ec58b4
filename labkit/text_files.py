"""Text files that people write by hand: lists, settings, modules, time stamps. One reader for all of them.

Windows' editors begin a file with a byte order mark, write UTF-16, and end lines with CRLF. None of it is a fault of
the person who saved the file.
"""

from __future__ import annotations

import codecs
from pathlib import Path

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # begins as UTF-16's mark does
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class UnreadableText(ValueError):
    """The bytes are not text in an encoding that can be recognized; the message names the line and what to do."""


def encoding_of(data: bytes) -> tuple[str, int]:
    """Return the encoding of a text, and the length of its byte order mark in bytes.

    Without a mark it is UTF-8, or UTF-16 if one of the first two bytes is 0: no text begins with that character.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return encoding, len(mark)
    if len(data) > 1 and 0 in data[:2]:
        return ("utf-16-be" if data[0] == 0 else "utf-16-le"), 0
    return "utf-8", 0


def decoded(data: bytes) -> str:
    r"""Return the text of a file without its byte order mark, with `\n` between lines. Raises `UnreadableText`."""
    encoding, skipped = encoding_of(data)
    try:
        text = data[skipped:].decode(encoding)
    except UnicodeDecodeError as problem:
        line = data[skipped : skipped + problem.start].decode(encoding, "replace").count("\n") + 1
        raise UnreadableText(
            f"line {line} is not {encoding[:6].upper().rstrip('-')} text: save the file as UTF-8 in your editor"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_text(path: Path) -> str:
    """Return the text of a file; see `decoded`. Raises OSError and `UnreadableText`."""
    return decoded(path.read_bytes())
