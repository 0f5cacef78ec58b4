"""Paths of a course whose folder has characters of patterns, such as `[`, or of regular expressions, such as `(`.

nbgrader puts the course's folder as it is into patterns of files, and a step's folder into regular expressions: it then
finds nothing. It also puts the folder into the address of the gradebook, where `?` ends the path and `%` begins a code:
such a folder is refused.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

from nbgrader import utils
from nbgrader.apps import api
from nbgrader.converters import base
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange.default import exchange, release_feedback

_format_path = CourseDirectory.format_path
_folders: set[str] = set()
"""Folders of courses and of `notebooks/`, which patterns begin with."""


def format_path(
    course: CourseDirectory, nbgrader_step: str, student_id: str, assignment_id: str, escape: bool = False
) -> str:
    """Replaces nbgrader's method. The folder of `notebooks/` is a whole path, which nbgrader does not escape."""
    _folders.update(folder for folder in (course.root, nbgrader_step) if os.path.isabs(folder))
    step = re.escape(nbgrader_step) if escape else nbgrader_step
    path: str = _format_path(course, step, student_id, assignment_id, escape)
    return path


def require_usable(course: Path) -> None:
    """End the program with status 2 and a line that says why if nbgrader cannot address a gradebook in this folder."""
    odd = sorted(set("?%") & set(str(course)))
    if odd:
        which = " and ".join(odd)
        print(f"{course}: nbgrader finds no gradebook in a folder with {which} in its path: rename it", file=sys.stderr)
        raise SystemExit(2)


def matching(pattern: str) -> list[str]:
    """Replaces `glob.glob` for patterns made by `format_path`: only what follows the folder of the course is one."""
    folder = max((each for each in _folders if pattern.startswith(each + os.sep)), key=len, default="")
    return glob.glob(glob.escape(folder) + pattern[len(folder) :])


def install() -> None:
    """Make nbgrader, in this process, find the files of a course with such a folder."""
    CourseDirectory.format_path = format_path
    for module in (api, base, exchange, release_feedback, utils):
        module.glob = SimpleNamespace(glob=matching)
