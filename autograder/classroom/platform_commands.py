"""`labkit hub --roster` and `--send-marks`: the course's people and marks on its learning platform."""

from __future__ import annotations

import sys
from pathlib import Path

from autograder.classroom import site as sites
from autograder.classroom.folders import add_learners, learners
from autograder.classroom.learning_platform import Platform
from autograder.classroom.site import Site
from labkit.command_line.commands import CommandError


def roster(path: Path) -> int:
    """Add the learners of the course on the platform to `learners.txt`; return the exit status. Raises `CommandError`.

    Nobody is taken off the list: learners who have left the course there are printed.
    """
    site = sites.load(path)
    members, refused = _platform(site).roster()
    there = [member.name for member in members if member.is_learner and member.name not in site.course.instructors]
    known = learners(site, site.folder)
    new = [name for name in dict.fromkeys(there) if name not in known]
    add_learners(site.folder, new)
    print(f"{len(there)} learners on the platform, {len(new)} of them new: {', '.join(new) or 'none'}")
    if new:
        print("they can log in after the next start of the hub")
    if gone := [name for name in known if name not in there]:
        print(f"on the classroom's lists, not on the platform: {', '.join(gone)}")
    for why in refused:
        print(f"left out: {why}", file=sys.stderr)
    return 1 if refused else 0


def send_marks(path: Path, assignment: str) -> int:
    """Send an assignment's marks to the platform; return the exit status. Raises `CommandError`.

    Learners without a mark yet are left as they are there.
    """
    # imports nbgrader and torch, which a roster does not need
    from autograder.course_folder import Course, CourseFailed
    from autograder.gradebook_lock import GradebookLocked

    site = sites.load(path)
    try:
        course = Course(site.folder / "course")
        if assignment not in course.assignments():
            there = ", ".join(course.assignments()) or "none"
            raise CommandError(f"not released: {assignment}; there are: {there}")
        grades = course.grades(assignment)
    except (CourseFailed, GradebookLocked) as problem:
        raise CommandError(str(problem)) from None
    scores = {grade.learner.id: grade.score for grade in grades if grade.score is not None}
    without = [grade.learner.id for grade in grades if grade.score is None]
    points = max((grade.points for grade in grades), default=0.0)
    unknown = _platform(site).send(assignment, points, scores)
    print(f"{assignment}: {len(scores) - len(unknown)} marks are on the learning platform, of {points:g} points")
    for reason, names in (("not in the course there", unknown), ("no mark yet", without)):
        if names:
            print(f"{reason}: {', '.join(names)}", file=sys.stderr)
    return 1 if unknown else 0


def _platform(site: Site) -> Platform:
    if site.login.kind != "lti" or site.login.lti is None:
        raise CommandError('there is no learning platform: [login] kind = "lti" names one')
    return Platform(site.login.lti, site.folder / "hub")
