"""A file of measurements: a JSON object in each line, appended as they are made, so that a benchmark can be resumed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from labkit.course.phase4_production.scaling_study.given.records import Measurement

KIND = "measurement"
_BEGINNING = json.dumps({"kind": KIND})[:-1].encode()
"""Beginning of each line: it distinguishes a line that was cut off from a line of another kind of file."""


def append(path: Path, measurement: Measurement) -> None:
    """Add a line, and make the file if it is missing."""
    with path.open("a+b") as file:
        file.seek(0, 2)
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":  # an earlier run was killed while it wrote
                file.write(b"\n")
        file.write(json.dumps({"kind": KIND, **measurement.to_plain()}).encode() + b"\n")


def read(path: Path) -> list[Measurement]:
    """Return the measurements in a file, none if it is missing; skip a line that was cut off. Raises ValueError."""
    measurements = []
    lines: Iterable[bytes] = path.read_bytes().splitlines() if path.exists() else ()
    for number, line in enumerate(lines, 1):
        try:
            plain = json.loads(line)
        except ValueError:
            if line.startswith(_BEGINNING) or _BEGINNING.startswith(line):
                continue
            plain = None
        if not isinstance(plain, dict) or plain.pop("kind", None) != KIND:
            raise ValueError(f"{path}, line {number}: not a line of `labkit bench`")
        try:
            measurements.append(Measurement.from_plain(plain))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    return measurements
