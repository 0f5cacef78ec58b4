"""Where a process hangs: the learner's frames from faulthandler's output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from labkit.catalogue import code_folders
from labkit.clusters.job import Job
from labkit.clusters.program import is_learners
from labkit.clusters.rank_status import Frame

_WAITERS = (str(Path(torch.__file__).parent), *map(str, code_folders()))
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
"""Escape sequence that faulthandler writes for a character that is not ASCII, in names of files and functions."""


@dataclass(frozen=True)
class ThreadStack:
    """The place of one thread."""

    identifier: int
    frames: tuple[Frame, ...]
    """The learner's frames, as in `RankError.frames`, outermost first."""
    in_torch: bool
    """Whether its innermost frame is torch's, or the lab's own that calls torch."""
    current: bool = False
    """Whether it is the thread that was asked, or that crashed."""


def threads(dump: str, job: Job) -> list[ThreadStack]:
    """The threads in a dump that run the learner's code."""
    sources = _sources(job)
    by_thread: dict[int, list[Frame]] = {}
    innermost: dict[int, str] = {}
    thread = current = 0
    for line in map(_unescaped, dump.splitlines()):
        if header := _THREAD.match(line):
            thread = int(header[1], 16)
            current = thread if line.startswith("Current") else current
        elif frame := _FRAME.match(line):
            innermost.setdefault(thread, frame[1])
            if is_learners(frame[1]):
                number = int(frame[2])
                source = sources.get(frame[1], [])
                text = source[number - 1].strip() if 0 < number <= len(source) else ""
                by_thread.setdefault(thread, []).insert(0, (frame[1], number, frame[3], text))
    return [
        ThreadStack(thread, tuple(frames), innermost[thread].startswith(_WAITERS), thread == current)
        for thread, frames in by_thread.items()
    ]


def _unescaped(line: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[match.lastindex or 0], 16)), line)


def _sources(job: Job) -> dict[str, list[str]]:
    return dict(_named_sources(job))


def _named_sources(job: Job) -> Iterator[tuple[str, list[str]]]:
    if job.source is not None:
        yield job.filename, [""] * (job.first_line - 1) + job.source.splitlines()
    for name, source in job.modules.items():
        yield f"{name}.py", source.splitlines()
