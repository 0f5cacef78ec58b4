"""Untrusted text on a terminal: names of learners and files may hold anything that a file name can hold."""

from __future__ import annotations

import unicodedata

_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def harmless(text: str, longest: int = 200) -> str:
    """Return `text` on one line, without terminal control or reordering characters, truncated when very long."""
    shown = "".join(_visible(character) for character in text)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def _visible(character: str) -> str:
    return f"\\x{ord(character):02x}" if unicodedata.category(character) in _UNSEEN else character
