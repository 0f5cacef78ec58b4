"""`labkit hub --check`: the requirements of the configured classroom, and which of them are missing."""

from __future__ import annotations

from pathlib import Path

from autograder.classroom import site as sites
from autograder.classroom.folders import learners
from autograder.classroom.requirements import missing, missing_for_people
from autograder.sandbox import cgroups


def main(path: Path) -> int:
    """Print what is missing; return 0 if nothing is, else 1. Raises `CommandError` for wrong settings."""
    site = sites.load(path)
    people = learners(site, site.folder)
    print(f"{path}: the settings are valid")
    print(f"login: {site.login.kind}; servers: {site.servers.kind}")
    print(f"{len(site.course.instructors)} instructors, {len(people)} learners, classroom in {site.folder}")
    if site.servers.memory_gib and site.servers.are_local_processes:
        print(f"memory of a server: at most {site.servers.memory_gib:g} GiB, {_held_by()}")
    problems = [*missing(site), *missing_for_people(site)]
    for problem in problems:
        print(f"missing: {problem}")
    if not problems:
        print("nothing is missing")
    return 1 if problems else 0


def _held_by() -> str:
    parents = cgroups.prepare()
    if parents is None:
        return "watched by the hub, which cannot make control groups here"
    return f"held by control groups, version {parents.version}"
