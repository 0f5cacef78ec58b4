"""Which tests run something for real: `tests/tiers.toml`, as ./lab test and its plugins read it."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parent.parent / "tiers.toml"


def real_kind(nodeid: str) -> str:
    """What the test runs besides this process and virtual ranks, the first that fits; empty if nothing."""
    kinds = table()["real"].items()
    return next((kind for kind, patterns in kinds if matches(nodeid, patterns)), "")


@functools.cache
def table() -> dict[str, Any]:
    """The content of `tests/tiers.toml`."""
    return tomllib.loads(TABLE.read_text())


def matches(text: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns fits; `*` fits any characters, slashes among them."""
    return any(fnmatchcase(text, pattern) for pattern in patterns)
