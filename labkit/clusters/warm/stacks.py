"""Where a process hangs: the learner's frames out of what faulthandler writes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from labkit.clusters.job import Job
from labkit.clusters.program import is_learners

LearnerFrame = tuple[str, int, str, str]
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


def learner_frames(dump: str, job: Job) -> dict[int, list[LearnerFrame]]:
    """By thread identifier, the learner's frames as in `RankError.frames`, outermost first."""
    sources = _sources(job)
    found: dict[int, list[LearnerFrame]] = {}
    thread = 0
    for line in dump.splitlines():
        if header := _THREAD.match(line):
            thread = int(header[1], 16)
        elif (frame := _FRAME.match(line)) and is_learners(frame[1]):
            number = int(frame[2])
            source = sources.get(frame[1], [])
            text = source[number - 1].strip() if 0 < number <= len(source) else ""
            found.setdefault(thread, []).insert(0, (frame[1], number, frame[3], text))
    return found


def _sources(job: Job) -> dict[str, list[str]]:
    return dict(_named_sources(job))


def _named_sources(job: Job) -> Iterator[tuple[str, list[str]]]:
    if job.source is not None:
        yield job.filename, [""] * (job.first_line - 1) + job.source.splitlines()
    for name, source in job.modules.items():
        yield f"{name}.py", source.splitlines()
