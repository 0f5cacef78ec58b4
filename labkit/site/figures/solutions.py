"""The course's own modules for a job: what learners write, solved."""

from __future__ import annotations

from labkit.catalogue import find


def modules_of(exercise: str) -> dict[str, str]:
    """Return the solutions of an exercise and of those that it builds on, by their full names, for `Job.modules`."""
    wanted = find(exercise)
    return {each.name: each.source("solution")[0] for each in (*wanted.builds_on, wanted)}
