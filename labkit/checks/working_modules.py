"""Whose modules run outside of notebooks: the learner's own where they are known to pass, else the solutions.

One rule for `labkit tune`, `bench`, `launch` and `launch --config`, and for programs under `torchrun` or `python -m`
that import `labkit.exercises`. It is printed in one line. Cells of notebooks run the current modules, passed or not.
"""

from __future__ import annotations

import linecache
import multiprocessing
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from labkit import catalogue
from labkit.catalogue import Exercise
from labkit.checks.known_passes import is_known_to_pass
from labkit.checks.ranks import Submission
from labkit.checks.rubric import NoRubric
from labkit.checks.stand_ins import StandIns
from labkit.clusters.torchrun_command import exercises_used
from labkit.text_files import read_text


def working_modules(*exercises: Exercise, purpose: str = "measures") -> StandIns:
    """Return the modules of exercises and of those that they build on, with one note that says whose they are.

    A module is known to pass if its visible checks passed before, in a notebook or by `labkit check`: none run here.
    purpose: a verb for the note. Where the course has no solution, the learner's own module is used although it is not
    known to pass, and the template if there is none.
    """
    needed = {each.name: each for exercise in exercises for each in (*exercise.builds_on, exercise)}
    chosen, whose, unknown = StandIns(), {}, []
    for each in sorted(needed.values(), key=lambda exercise: exercise.entry.number):
        before = {one.name: chosen.modules[one.name] for one in each.builds_on}
        mine = _written(each)
        if mine:
            if _passes(Submission(each, mine, before)):
                chosen.modules[each.name], whose[each.short_name] = mine, "your own"
                continue
            unknown.append(each.short_name)
        chosen.modules[each.name], origin = each.source("solution", "yours" if mine else "template", "template")
        whose[each.short_name] = "your own" if origin == "yours" else f"the {origin} of"
    if exercises:
        first = {exercise.short_name for exercise in exercises}
        below = [name for name in whose if name not in first]
        note = f"it {purpose} with {_listed(whose, [name for name in whose if name in first])}"
        note += f", on top of {_listed(whose, below)}" if below else ""
        note += f"; not known to pass: your own {_joined(unknown)} (labkit check)" if unknown else ""
        chosen.notes.append(f"{note}.")
    return chosen


def program_modules(*sources: str, own: Mapping[str, str] = MappingProxyType({})) -> StandIns:
    """Return the modules of all exercises for programs; one note for those that their texts import, none without any.

    own: modules that come with the programs, by full name; they are used as they are.
    """
    by_name = {exercise.short_name: exercise for exercise in catalogue.all_exercises() if exercise.name not in own}
    names = dict.fromkeys(name for source in sources for name in _used(source))
    used = [by_name[name] for name in names if name in by_name]
    return StandIns({**all_modules(), **own}, working_modules(*used, purpose="runs").notes)


def _used(source: str) -> list[str]:
    try:
        return exercises_used(source)
    except (SyntaxError, ValueError):  # whoever runs it says so
        return []


def modules_of_this_program(importing_file: str) -> dict[str, str]:
    """Return the modules of all exercises for this process, a program; at the first call rank 0 prints the note.

    importing_file: file that imports `labkit.exercises`. A process that another one has made to help it prints nothing.
    """
    place = catalogue.workspace()
    if place not in _chosen_here:
        chosen = program_modules("".join(linecache.getlines(importing_file)))
        if os.environ.get("RANK", "0") == "0" and multiprocessing.parent_process() is None:
            show(chosen)
        _chosen_here[place] = chosen.modules
    return _chosen_here[place]


_chosen_here: dict[Path, dict[str, str]] = {}
"""By workspace: a process has one."""


def show(chosen: StandIns) -> None:
    """Print the note to standard error."""
    for note in chosen.notes:
        print(f"note: {note}", file=sys.stderr, flush=True)


def _written(exercise: Exercise) -> str:
    """Return the learner's module; empty if it is not there, or still the template."""
    texts = {origin: read_text(path) for origin, path in exercise.paths.items() if path.is_file()}
    mine = texts.get("yours", "")
    return mine if mine.strip() not in ("", texts.get("template", "").strip()) else ""


def _passes(submission: Submission) -> bool:
    try:
        return submission.is_the_solution or is_known_to_pass(submission)
    except NoRubric:  # without checks, accept it
        return True


def all_modules() -> dict[str, str]:
    """Return the modules of all exercises that have one, by full name."""
    return working_modules(*(each for each in catalogue.all_exercises() if _has_module(each))).modules


def _has_module(exercise: Exercise) -> bool:
    return all(any(path.is_file() for path in each.paths.values()) for each in (*exercise.builds_on, exercise))


def _listed(whose: dict[str, str], names: Collection[str]) -> str:
    """`your own ddp and the solutions of zero and trainer`."""
    origins = dict.fromkeys(whose[name] for name in names)
    groups = {origin: [name for name in names if whose[name] == origin] for origin in origins}
    return " and ".join(
        f"{origin.replace(' of', 's of') if len(group) > 1 else origin} {_joined(group)}"
        for origin, group in groups.items()
    )


def _joined(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
