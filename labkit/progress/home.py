"""The course home, `HOME.md` in the workspace: where to continue, and the map of the course with the points so far.

It is a Markdown page, readable in any editor. A comment at its end holds the same facts as JSON; the extension in
`labextensions/` shows them in JupyterLab as a page that follows the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Set
from itertools import pairwise
from pathlib import Path
from typing import Any

from labkit.catalogue import root, workspace
from labkit.linux.files import replace_text
from labkit.progress.course import CourseProgress, ExerciseProgress, course_progress
from labkit.progress.store import FOLDER, locked

LAB_EXTENSIONS = Path(__file__).with_name("labextensions")
"""Folder for JupyterLab's option `--LabApp.extra_labextensions_path`."""
HOME = "HOME.md"
"""File name of the page, in the workspace and in `notebooks/`."""

CLASSROOM_PAGE = "LABKIT_CLASSROOM_PAGE"
"""Environment variable of a learner's server on a hub: path of the course's page there."""

TOUR = (
    "A notebook sets one exercise. Shift+Enter runs a cell and goes on to the next one.",
    "`%%torchrun -n 4` runs a cell on four *ranks*: fresh processes that share nothing but the messages they send.",
    "You write one module, in the cell that begins with `%%exercise`. Run it: it is saved, and ranks can import it.",
    "`%check` shows what was expected and what was observed. `%hint` gives one hint at a time.",
    "`%explain` shows the page about the last error or a word; `%search` finds words in all notebooks and guides.",
    "Points appear here as soon as a check has run. Each notebook leads back to this page, at its top and at its end.",
)
"""The lab in two minutes, in Markdown with `code` and *emphasis* alone."""

FETCH = "*Nbgrader → Assignment List* fetches its notebook once it is released."
"""How to get the notebook to continue with, on a hub, before it is there."""
CLASSROOM_LINK = "What you have submitted, your place in the queue, and challenges"
GUIDES = (
    ("From one GPU to thousands", "guide.md"),
    ("Which parallelism, when", "strategies.md"),
    ("Where does the time go?", "performance.md"),
    ("Troubleshooting", "troubleshooting.md"),
    ("Glossary", "glossary.md"),
)
"""Pages of `docs/` that the home links to: title and file."""


def home_path() -> Path:
    """Path of the page."""
    return workspace() / HOME


def write_home() -> Path:
    """Write the page from the saved results; return its path. Raises OSError when the workspace cannot be written."""
    with locked(workspace() / FOLDER / "home.lock"):  # else an older state could replace a newer one
        replace_text(home_path(), page(course_progress(), _docs(), os.environ.get(CLASSROOM_PAGE, "")))
    return home_path()


def _docs() -> str:
    """Folder of the guides as seen from the page; empty if there is none.

    Where the workspace is outside of the course, JupyterLab serves only the workspace. There a link to the guides is
    made, unless the learner has something of that name: JupyterLab takes the notebooks' links to `../../docs` for it.
    """
    folder, own = (root() / "docs").resolve(), workspace().resolve()
    if not (folder / GUIDES[0][1]).is_file():
        return ""
    if not own.is_relative_to(root().resolve()):
        link = own / folder.name
        if link.is_symlink() and not link.exists():  # to a course that has moved
            link.unlink()
        if not link.exists():
            link.symlink_to(folder)
        return link.name if link.resolve() == folder else ""
    return Path(os.path.relpath(folder, own)).as_posix()


def page(course: CourseProgress, docs: str = "../docs", classroom: str = "") -> str:
    """Return the page as Markdown, with links to the guides in the folder `docs`; empty for none.

    classroom: path of the course's page on a hub; empty where there is no hub.
    """
    missing = _missing(course) if classroom else set()
    lines = ["# Course home", ""]
    if course.next is not None:
        fetch = f" {FETCH}" if course.next.exercise.name in missing else ""
        link = _link(course.next, missing)
        lines += [f"**Continue here: {link}**, {course.next.exercise.entry.minutes} minutes.{fetch}", ""]
    lines += [f"{course.summary}.", ""]
    if classroom:
        lines += [f"[{CLASSROOM_LINK}]({classroom})", ""]
    for title, exercises in course.phases.items():
        lines += [f"## {title}", "", "| exercise | builds on | minutes | points | |", "|---|---|---|---|---|"]
        for one in exercises:
            builds_on = ", ".join(f"{earlier.entry.number:02}" for earlier in one.builds_on)
            minutes = one.exercise.entry.minutes
            lines.append(f"| {_link(one, missing)} | {builds_on} | {minutes} | {one.points_text} | {one.state} |")
        lines.append("")
    lines += ["## The lab in two minutes", "", *(f"{number}. {step}" for number, step in enumerate(TOUR, 1)), ""]
    if docs:
        lines += ["## Guides", "", *(f"- [{title}]({docs}/{name})" for title, name in GUIDES), ""]
    lines += ["## What builds on what", "", "```mermaid", *_diagram(course), "```", ""]
    facts = _facts(course, docs, classroom, missing)
    comment = json.dumps(facts).replace(">", "\\u003e")  # nothing in it may end the comment
    return "\n".join([*lines, f"<!-- labkit {comment} -->", ""])


def _missing(course: CourseProgress) -> set[str]:
    """Names of exercises whose notebooks are not in the workspace: on a hub they are there once they are fetched."""
    return {one.exercise.name for one in course.exercises if not (workspace() / one.exercise.notebook_name).is_file()}


def _link(one: ExerciseProgress, missing: Set[str]) -> str:
    return one.label if one.exercise.name in missing else f"[{one.label}]({one.exercise.notebook_name})"


def _diagram(course: CourseProgress) -> list[str]:
    lines = ["flowchart LR"]
    for number, (title, exercises) in enumerate(course.phases.items(), 1):
        lines += [f'  subgraph phase{number} ["{title}"]']
        lines += [f'    {_node(one)}["{one.label}"]' for one in exercises]
        lines += [f"    {_node(one)} ~~~ {_node(after)}" for one, after in pairwise(exercises)]
        lines += ["  end"]
    for one in course.exercises:
        lines += [f"  e{earlier.entry.number} --> {_node(one)}" for earlier in one.builds_on]
    return lines


def _node(one: ExerciseProgress) -> str:
    return f"e{one.exercise.entry.number}"


def _facts(course: CourseProgress, docs: str, classroom: str, missing: Set[str]) -> dict[str, Any]:
    """Return the facts that the extension shows. missing: names of exercises without a notebook."""
    return {
        "summary": course.summary,
        "next": None if course.next is None else course.next.exercise.entry.number,
        "tour": TOUR,
        **({"classroom": {"title": CLASSROOM_LINK, "address": classroom, "fetch": FETCH}} if classroom else {}),
        "guides": [{"title": title, "page": f"{docs}/{name}"} for title, name in GUIDES] if docs else [],
        "phases": [
            {"title": title, "exercises": [_exercise_facts(one, one.exercise.name in missing) for one in exercises]}
            for title, exercises in course.phases.items()
        ],
    }


def _exercise_facts(one: ExerciseProgress, missing: bool) -> dict[str, Any]:
    return {
        "number": one.exercise.entry.number,
        "label": one.label,
        "notebook": one.exercise.notebook_name,
        "minutes": one.exercise.entry.minutes,
        "points": one.points_text,
        "share": one.earned / one.points if one.points else 0,
        "answers": one.right_answers,
        "state": one.state,
        "builds_on": [earlier.entry.number for earlier in one.builds_on],
        **({"missing": True} if missing else {}),
        **({} if one.place is None else {"cell": one.place.cell, "heading": one.place.heading}),
    }
