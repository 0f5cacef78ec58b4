"""`labkit hub --demo`: an assignment, released, fetched and handed in by every learner: right, wrong, unfinished."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import nbformat
from nbgrader.auth import Authenticator
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange.default import Exchange, ExchangeFetchAssignment, ExchangeReleaseAssignment, ExchangeSubmit
from rich.console import Console
from traitlets.config import Config

from autograder.classroom.folders import Folders, give
from autograder.course_folder import Course
from autograder.mutants import Mutants
from autograder.submissions import with_module
from labkit import catalogue
from labkit.catalogue import Exercise

CACHE = Path(".local/share/jupyter/nbgrader_cache")
"""nbgrader's folder for copies of handed-in work, below a learner's home."""


def fill(console: Console, folders: Folders, learners: Sequence[str]) -> None:
    """Hand in one assignment for every learner who has not, as if they had done it in their own servers."""
    course = Course(folders.course)
    exercise = next(candidate for candidate in catalogue.all_exercises() if candidate.phase in course.sources())
    if not (folders.in_exchange("outbound") / exercise.phase).is_dir():
        with console.status(f"releasing {exercise.phase}"):
            course.release(exercise.phase)
            _exchange(ExchangeReleaseAssignment, folders, folders.exchange, exercise.phase, Path("."))
    modules = _modules(exercise)
    for name, (description, module) in zip(learners, cycle(modules.items()), strict=False):
        if (folders.home(name) / exercise.phase).exists():
            continue
        _hand_in(folders, name, exercise, module)
        console.print(f"{name} has handed in {exercise.phase}, {description}")


def _modules(exercise: Exercise) -> dict[str, str]:
    """Return the modules to hand in, by description."""
    mutants = Mutants(exercise)
    wrong = min(mutants, key=lambda name: mutants[name].marks)
    return {
        f"{exercise.short_name} is right": exercise.source("solution")[0],
        f"{exercise.short_name} is wrong": mutants.text(wrong),
        "nothing is written": "",
    }


def _hand_in(folders: Folders, learner: str, exercise: Exercise, module: str) -> None:
    """Fetch the assignment into the learner's home, write the module into its notebook, and submit it."""
    uid, home = folders.prepare_learner(learner), folders.home(learner)
    with tempfile.TemporaryDirectory() as seen:
        own = Path(seen) / folders.course_name
        own.mkdir()
        (own / "outbound").symlink_to(folders.in_exchange("outbound"))
        (own / "inbound").symlink_to(folders.in_exchange("inbound", learner))
        _exchange(ExchangeFetchAssignment, folders, Path(seen), exercise.phase, home, learner)
        path = home / exercise.notebook_name
        notebook = nbformat.read(path, as_version=4)
        if module:
            nbformat.write(with_module(notebook, exercise.name, module), path)
        _exchange(ExchangeSubmit, folders, Path(seen), exercise.phase, home, learner)
    if uid is not None:
        give(home, uid)
        give(folders.in_exchange("inbound", learner), uid)


def _exchange(
    kind: type[Exchange], folders: Folders, root: Path, assignment: str, home: Path, learner: str = "*"
) -> None:
    """Run one step of nbgrader's exchange whose root, as the person sees it, is `root`."""
    config = Config()
    config.CourseDirectory.course_id = folders.course_name
    config.CourseDirectory.root = str(folders.course)
    config.CourseDirectory.student_id = learner
    config.CourseDirectory.assignment_id = assignment
    config.Exchange.root, config.Exchange.assignment_dir = str(root), str(home)
    config.Exchange.cache = str(home / CACHE)
    log = logging.Logger("nbgrader", logging.ERROR)
    coursedir = CourseDirectory(config=config, log=log)
    kind(coursedir=coursedir, authenticator=Authenticator(config=config), config=config, log=log).start()
