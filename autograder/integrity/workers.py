"""Parsed learner modules, read in a separate process that any text may crash."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from autograder.integrity.reach import Reach

NO_ANSWER = "reading it took too long or too much memory"


@dataclass(frozen=True)
class Reading:
    """Result of parsing one module."""

    grams: tuple[tuple[int, ...], ...]
    """Hashes of the token runs of each function, in order."""
    lines: tuple[tuple[int, ...], ...]
    """Line of each token of each function."""
    reaches: tuple[Reach, ...]
    comments: tuple[tuple[int, str], ...]
    problem: str
    """Why it could not be parsed; empty if it could."""


def readings(asked: Iterable[tuple[str, frozenset[str]]]) -> Iterator[Reading]:
    """Yield the reading of each text, in order; each text comes with the names that its exercise forbids."""
    process: subprocess.Popen[str] | None = None
    try:
        for source, forbidden in asked:
            process = process or _start()
            answer = _ask(process, source, forbidden)
            if answer is None:
                _end(process)
                process = None
                yield Reading((), (), (), (), NO_ANSWER)
            else:
                yield _reading(json.loads(answer))
    finally:
        if process is not None:
            _end(process)


def _start() -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "autograder.integrity.reader"]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8"
    )


def _ask(process: subprocess.Popen[str], source: str, forbidden: frozenset[str]) -> str | None:
    """Return one line of answer; None when the process ended first."""
    assert process.stdin is not None and process.stdout is not None
    try:
        # ASCII, so that no text of a learner can end the line
        process.stdin.write(json.dumps({"source": source, "forbidden": sorted(forbidden)}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        return None
    return line if line.endswith("\n") else None


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with suppress(BrokenPipeError):
        process.communicate()


def _reading(answer: dict[str, Any]) -> Reading:
    return Reading(
        tuple(map(tuple, answer["grams"])),
        tuple(map(tuple, answer["lines"])),
        tuple(Reach(*reach) for reach in answer["reaches"]),
        tuple((line, text) for line, text in answer["comments"]),
        answer["problem"],
    )
