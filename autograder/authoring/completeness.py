"""Check that a course tree is whole: each exercise of the catalogue has all its files, which agree with its entry.

Files of exercises that belong to no entry of the catalogue are reported, too. The folder of an instructor's own
exercises is a tree like that of the lab.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograder.judge import hidden_rubric
from autograder.mutants import Variants
from labkit.catalogue import Exercise, all_exercises, catalogue_path, exercises_in, roots, shown_path
from labkit.checks import visible_rubric
from labkit.checks.guidance import todos
from labkit.questions import questions_of, questions_path
from labkit.text_files import read_text

UNFILLED = "TODO(author)"
"""Marks each place that the author of a new exercise has to fill in."""

MODULES = ("solutions", "templates")
"""Trees with a file `PHASE/NAME.py` for each exercise."""

FOLDERS = {
    "labkit": ("__init__.py", "checks.py", "questions.py"),
    "autograder": ("__init__.py", "rubric.py", "mutants.py"),
    "tests": ("benchmark.py", "test_{name}.py"),
}
"""Files that every exercise has in its folder `course/PHASE/NAME` of these trees."""

MORE = {
    "labkit": ("given", "given.py", "scenarios", "scenarios.py"),
    "autograder": ("mutants", "variants", "variants.py"),
    "tests": ("adversaries", "test_*.py"),
}
"""What some exercises have there, too. Anything else is reported: nothing would look for it."""

README_ROW = re.compile(r"\|(?: \[phase \d\]\(templates/(\w+)/README\.md\)[^|]*)? \| `(\w+)` \|")
"""A row of the table in README.md: the phase, in its first row only, and the exercise's short name."""


def files(exercise: Exercise) -> list[Path]:
    """Return the paths that an exercise must have, below the course's folder."""
    return [
        *(Path(tree, exercise.filename) for tree in MODULES),
        Path("notebooks", exercise.notebook_name),
        *(
            folder(exercise, owner) / part.format(name=exercise.short_name)
            for owner, parts in FOLDERS.items()
            for part in parts
        ),
    ]


def folder(exercise: Exercise, owner: str) -> Path:
    """Return the folder of an exercise in one of the trees of `FOLDERS`, below the course's folder."""
    return Path(owner, "course", exercise.name)


def pages(phases: set[str]) -> list[Path]:
    """Return the pages that list all exercises of a phase or of the course, below the course's folder."""
    guidelines = [Path("templates", phase, "README.md") for phase in sorted(phases)]
    return [Path("labkit/catalogue.toml"), Path("README.md"), Path("autograder/course/README.md"), *guidelines]


def faults() -> list[str]:
    """Return what is missing, belongs to no exercise, or contradicts the catalogue; empty if the tree is whole."""
    problems = [problem for tree in roots() for problem in [*_missing(tree), *_strays(tree)]]
    if not problems:
        for exercise in all_exercises():
            problems += _contradictions(exercise)
        for tree in roots():
            problems += [*_guidelines(tree), *_readme(tree), *_numbers(tree)]
        problems += _question_names()
    return problems


def unfilled() -> list[str]:
    """Return the lines that are still to be filled in: `PATH:LINE: TEXT`."""
    lines = []
    for path in [tree / path for tree in roots() for path in (*_paths(tree), *_variants(tree))]:
        for number, line in enumerate(read_text(path).splitlines() if path.is_file() else (), 1):
            if UNFILLED in line:
                lines.append(f"{shown_path(path)}:{number}: {line.strip()}")
    return lines


def _paths(tree: Path) -> list[Path]:
    """Return the paths that must be in a course folder, below it."""
    exercises = exercises_in(tree)
    own = [path for exercise in exercises for path in files(exercise)]
    return [*own, *pages({exercise.phase for exercise in exercises})]


def _variants(tree: Path) -> Iterator[Path]:
    """Yield the files of variants in a course folder, below it."""
    for exercise in exercises_in(tree):
        for pattern in ("variants.py", "variants/*.py"):
            yield from (path.relative_to(tree) for path in sorted(exercise.folder("autograder").glob(pattern)))


def _missing(tree: Path) -> Iterator[str]:
    for path in _paths(tree):
        if not (tree / path).is_file():
            yield f"{shown_path(tree / path)} is missing"


def _strays(tree: Path) -> Iterator[str]:
    exercises = exercises_in(tree)
    known = {path for exercise in exercises for path in files(exercise)}
    known |= {folder(exercise, owner) for exercise in exercises for owner in FOLDERS}
    known |= {Path(owner, "course", exercise.phase, "__init__.py") for exercise in exercises for owner in FOLDERS}
    patterns = [f"{tree}/phase*_*/*.py" for tree in MODULES]
    patterns += [f"{owner}/course/phase*_*/*" for owner in FOLDERS]
    patterns += ["notebooks/phase*_*/*.ipynb"]
    for pattern in patterns:
        for path in sorted(tree.glob(pattern)):
            if path.relative_to(tree) not in known and path.name != "__pycache__":
                yield f"{shown_path(path)} belongs to no exercise of {catalogue_path().name}"
    for exercise in exercises:
        for owner, parts in FOLDERS.items():
            patterns = [part.format(name=exercise.short_name) for part in parts] + [*MORE[owner], "__pycache__"]
            for path in sorted((tree / folder(exercise, owner)).glob("*")):
                if not any(fnmatchcase(path.name, pattern) for pattern in patterns):
                    expected = ", ".join((*parts, *MORE[owner])).format(name=exercise.short_name)
                    yield f"{shown_path(path)} has a name that nothing looks for; names there are {expected}"


def _contradictions(exercise: Exercise) -> Iterator[str]:
    """Compare an exercise's own files with its entry."""
    entry = exercise.entry
    solution = exercise.paths["solution"]
    imported = sorted(
        name.name
        for node in ast.walk(ast.parse(read_text(solution)))
        if isinstance(node, ast.ImportFrom) and node.module == "labkit.exercises"
        for name in node.names
    )
    if imported != sorted(entry.builds_on):
        yield f"{exercise.name} builds on {list(entry.builds_on)}, but its solution imports {imported}"
    if not exercise.public_names:
        yield f"solutions/{exercise.filename} has no __all__"

    notebook = nbformat.read(exercise.notebook, as_version=4)
    head = notebook.cells[0].source
    if not head.startswith(f"# {exercise.label}\n"):
        yield f"{exercise.notebook}: the title is not {exercise.label!r}"
    if f"\n| time | {entry.minutes} minutes for you," not in head:
        yield f"{exercise.notebook}: the first cell does not give {entry.minutes} minutes as the learner's time"
    graded = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade")]
    for cell in graded:
        if f'grade("{exercise.short_name}")' not in cell.source or cell.metadata.nbgrader.points != entry.points:
            yield f"{exercise.notebook}: its graded cell does not grade it with {entry.points:g} points"
    if len(graded) != 1:
        yield f"{exercise.notebook} has {len(graded)} graded cells"

    yield from _questions(exercise, notebook)

    for rubric in (visible_rubric(exercise), hidden_rubric(exercise)):
        if rubric.points != entry.points:
            yield f"{rubric.path}: its checks are worth {rubric.points:g} points, not {entry.points:g}"

    yield from _todos(exercise)

    if not Variants(exercise):
        yield f"{shown_path(exercise.folder('autograder'))} has no variant, in variants.py or variants/"

    benchmark = exercise.folder("tests") / "benchmark.py"
    if f"exercise {entry.number:02}'s " not in benchmark.read_text().partition("\n")[0]:
        yield f"{shown_path(benchmark)}: its first line does not name exercise {entry.number:02}"


def _todos(exercise: Exercise) -> Iterator[str]:
    """Each TODO of the template has hints, and each check names one of the TODOs."""
    numbers = todos.numbers(exercise)
    if numbers != list(range(1, len(numbers) + 1)) or not numbers:
        yield f"templates/{exercise.filename}: its TODOs are numbered {numbers}, not from 1 on"
    visible, hidden = visible_rubric(exercise), hidden_rubric(exercise)
    if sorted(visible.hints) != numbers or not all(visible.hints.values()):
        yield f"{visible.path}: it has hints for the TODOs {sorted(visible.hints)}, not {numbers}"
    for rubric in (visible, hidden):
        for check in rubric.checks:
            if check.todo not in numbers:
                yield f"{rubric.path}: check {check.name} names TODO {check.todo}, which the template does not have"


def _questions(exercise: Exercise, notebook: NotebookNode) -> Iterator[str]:
    """The notebook asks each question of the exercise once, in the order of their file."""
    wanted = [question.name for question in questions_of(exercise)]
    asked = [cell.source.split()[1] for cell in notebook.cells if re.match(r"%question \w+$", cell.source)]
    if asked != wanted:
        yield f"{exercise.notebook}: it asks the questions {asked}, not {wanted}"
    if len(wanted) < 2:
        yield f"{shown_path(questions_path(exercise))} has {len(wanted)} questions, fewer than two"


def _question_names() -> Iterator[str]:
    """A question is asked by its name alone, so names are unique in the course."""
    first: dict[str, str] = {}
    for exercise in all_exercises():
        for question in questions_of(exercise):
            if first.setdefault(question.name, exercise.name) != exercise.name:
                yield f"{exercise.name} and {first[question.name]} both have a question called {question.name}"


def _guidelines(tree: Path) -> Iterator[str]:
    """The guidelines of a phase have a heading for each of its exercises, in the course's order."""
    exercises = exercises_in(tree)
    for phase in sorted({exercise.phase for exercise in exercises}):
        path = tree / "templates" / phase / "README.md"
        wanted = [exercise.short_name for exercise in exercises if exercise.phase == phase]
        headings = re.findall(r"^## `(\w+)`$", path.read_text(), re.MULTILINE)
        if headings != wanted:
            yield f"{path}: its headings are {headings}, not {wanted}"


def _readme(tree: Path) -> Iterator[str]:
    """The table of README.md has the exercises in the course's order, each beside its phase."""
    phase, rows = "", []
    for line in (tree / "README.md").read_text().splitlines():
        if row := README_ROW.match(line):
            phase = row[1] or phase
            rows.append(f"{phase}/{row[2]}")
    if rows != [exercise.name for exercise in exercises_in(tree)]:
        yield f"{shown_path(tree / 'README.md')}: its table lists {rows}"


def _numbers(tree: Path) -> Iterator[str]:
    """Wherever a page or a notebook gives the number of an exercise with its name, it is the catalogue's."""
    numbers = {exercise.short_name: exercise.entry.number for exercise in all_exercises()}
    notebooks = (exercise.notebook for exercise in exercises_in(tree))
    for path in (tree / "README.md", *tree.glob("docs/*.md"), *tree.glob("templates/*/README.md"), *notebooks):
        for number, name in re.findall(r"[Ee]xercise (\d\d), `(\w+)`", path.read_text()):
            if int(number) != numbers.get(name, int(number)):
                yield f"{shown_path(path)}: exercise {name} has number {numbers[name]:02}, not {number}"
