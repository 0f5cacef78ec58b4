"""What the graders of a class are limited to, and what is looked at when they have ended."""

from __future__ import annotations

import hashlib
import html
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path

import nbformat
from classmates import Classmate
from pass_around import NOTEBOOK, PHASE
from waiting import wait_until

from autograder.course_folder import Course

LIMITS = {
    "Sandbox": {"processes": 100, "memory_bytes": 640 << 20, "scratch_bytes": 64 << 20, "cpu_seconds": 10},
    "JudgeCells": {"timeout": 3.0},
}
GRADER_BYTES = 3 << 30
"""Memory limit of each of the grader's processes: a reply that swells in the judge then kills the judge."""


def feedback(course: Course, student: str) -> str:
    """Return everything that the graded cell shows, as text."""
    path = course.folder / "autograded" / student / PHASE / f"{NOTEBOOK}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    shown = [output.data for output in notebook.cells[-1].outputs if "data" in output]
    pages = [html.unescape(re.sub(r"<[^>]*>", " ", data["text/html"])) for data in shown if "text/html" in data]
    return "\n".join([*(data.get("text/plain", "") for data in shown), *pages])


def unlike(one: Classmate, marks: float, shown: str) -> str:
    """Return how marks and feedback differ from what the classmate deserves; empty if they do not."""
    missing = [text for text in one.feedback if not any(wanted in shown for wanted in text.split(" | "))]
    leaked = [text for text in one.never if text in shown]
    if marks == one.marks and not missing and not leaked:
        return ""
    return f"{one.name}: {marks} marks, not {one.marks}; missing {missing}, leaked {leaked} in\n{shown}"


def assert_in_use(files: set[str]) -> None:
    """Wait until a process uses each of these files in /dev/shm, or it is gone: others may be about to open theirs."""
    left = set(files)

    def unused() -> set[str]:
        left.intersection_update(os.listdir("/dev/shm"))
        return left - in_use()

    wait_until(lambda: not unused(), unused, pause_seconds=0.5)


def in_use() -> set[str]:
    """Return files in /dev/shm that a process has open or mapped."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found += [os.readlink(path) for path in (process / "fd").iterdir()]
            found += re.findall(r"/dev/shm/\S+", (process / "maps").read_text())
    return {path.removeprefix("/dev/shm/") for path in found if path.startswith("/dev/shm/")}


def contents(folders: Sequence[Path]) -> dict[str, str]:
    """Return hashes of all files in some folders."""
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class Active(HTMLParser):
    """Collects active content of a page: scripts, and attributes that hold one."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_script = tag == "script"
        self.found += [f"{name}={value}" for name, value in attrs if name.startswith("on") or name == "src"]

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.found.append(data)


def assert_harmless(html: str) -> None:
    parser = Active()
    parser.feed(html)
    assert not any("taken over" in text or "alert(" in text for text in parser.found)
