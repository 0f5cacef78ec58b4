"""`labkit teach`: JupyterLab for a course, opened on nbgrader's formgrader.

The formgrader reads nbgrader_config.py from the folder where Jupyter starts, and shows an error on every page unless
Jupyter serves a folder that contains the course.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from autograder.course_folder import CONFIG_FILE
from labkit import catalogue
from labkit.command_line.commands import CommandError
from labkit.start import become_jupyterlab


def main(course: Path | None, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by JupyterLab with these `arguments`. Raises `CommandError`."""
    root = catalogue.root().resolve()
    if course is not None and not course.is_dir():
        raise CommandError(f"there is no folder {course}: name the one that holds release/ and submitted/")
    folder = (course or Path(os.environ.get("LABKIT_COURSE") or root / "course")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["LABKIT_COURSE"] = str(folder)
    os.chdir(CONFIG_FILE.parent)
    become_jupyterlab(root if folder.is_relative_to(root) else folder, "/lab?formgrader=true", arguments, "teaching")
