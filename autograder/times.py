"""Times as people and nbgrader write them, read to UTC.

nbgrader's own parser reads `12:00:00 +01:00` as 12:00 UTC, `+0100` as an offset of a hundred seconds, and takes a zone
that it does not know for UTC. A wrong due date costs learners marks, so what is not understood is refused.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

WHAT_TO_WRITE = "write 2027-01-31 23:59:00 UTC, or +01:00 in place of UTC"

_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)(?: ?(Z|[+-]\d\d(?::?\d\d)?|[A-Za-z][\w/+-]*))?)?",
    re.ASCII,
)
_OFFSET = re.compile(r"([+-]\d\d):?(\d\d)?", re.ASCII)


class InvalidTime(ValueError):
    """A text is not a time; the message says what to write."""


def utc_time(text: str) -> datetime:
    """Parse a time to UTC without a time zone, as nbgrader keeps times. Without an offset or a zone it is in UTC.

    text: an ISO 8601 date and time, and `UTC`, an offset such as `+01:00`, or a zone such as `Europe/Berlin`. Raises
    `InvalidTime`.
    """
    match = _TIME.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        date, clock, zone = match.groups()
        time = datetime.fromisoformat(f"{date}T{clock or '00:00'}{_offset(zone)}")
        if time.tzinfo is None and zone:
            time = time.replace(tzinfo=_zone(zone))
        return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
    except (ValueError, OverflowError):
        raise InvalidTime(f"{text[:60]!r} is not a time: {WHAT_TO_WRITE}") from None


def _offset(zone: str | None) -> str:
    """Return the offset in a form that all versions of Python read; empty if `zone` is a name."""
    if (zone or "").upper() in ("Z", "UTC", "GMT"):
        return "+00:00"
    match = _OFFSET.fullmatch(zone or "")
    return f"{match[1]}:{match[2] or '00'}" if match else ""


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    """Return a zone of the time zone database. Raises ValueError: an unknown abbreviation such as CEST is no UTC."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):  # ZoneInfoNotFoundError is a LookupError; a folder's name, an OSError
        raise ValueError(name) from None
