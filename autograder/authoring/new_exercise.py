"""`labkit new-exercise PHASE/NAME`: every file of a new exercise, from skeletons, and its entry in the catalogue.

The skeleton is a whole exercise whose module sums a tensor, so that an author starts from files that run. With
`--into FOLDER` the files are in a folder outside of the lab, which is laid out as the lab and has its own catalogue.
`labkit new-exercise --check` lists what is missing, contradicts the catalogue, or is still to be filled in.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from string import Template

import jupytext
import nbformat

from autograder.authoring import completeness
from autograder.mutants import judging
from labkit import sync
from labkit.catalogue import (
    FIRST_OWN_NUMBER,
    OWN_ROOT,
    Entry,
    Exercise,
    all_exercises,
    catalogue_path,
    entries,
    exercises_in,
    overlaps_with_lab,
    own_root,
    root,
)
from labkit.command_line.commands import CommandError
from labkit.text_files import read_text

SKELETONS = Path(__file__).with_name("skeletons")
MINUTES, POINTS = 45, 3
_TABLE_RULE = "|---|---|---|\n"
"""Line of README.md below the head of the exercises' table."""
_OWN_CATALOGUE = """# Your own exercises, in the course's order, after those of the lab. `labkit new-exercise` enters a
# new one; `labkit new-exercise --check` compares every file that repeats one of these facts.
"""


def check() -> int:
    """List what is wrong or unfilled in the course's exercises; return 1 if there is anything."""
    faults, unfilled = completeness.faults(), completeness.unfilled()
    for line in [*faults, *unfilled]:
        print(line)
    print(f"{len(faults)} faults, {len(unfilled)} places to fill in, in {len(all_exercises())} exercises")
    return int(bool(faults or unfilled))


def main(name: str, number: int | None, into: Path | None = None) -> int:
    """Make the exercise `name`, PHASE/NAME, and print what its author fills in. Raises `CommandError`.

    number: its position in the course; None: the one after the last of its phase and of the phases before, or of your
    own exercises. into: the folder of your own exercises; None: the one that is set, else the lab.
    """
    if not re.fullmatch(r"phase\d_[a-z0-9_]+/[a-z][a-z0-9_]*", name):
        raise CommandError(f"{name!r} is not PHASE/NAME, such as phase3_multi_node/ddp")
    was_set = os.environ.get(OWN_ROOT)
    tree = (own_root() or root()) if into is None else _own_folder(into.expanduser().resolve())
    exercise = Exercise(name)
    entry = _entry(exercise, number, tree)
    try:
        if into is not None:
            _begin(tree)
        _make(exercise, entry, tree)
    except OSError as error:
        raise CommandError(f"{error.filename} cannot be written: {error.strerror}") from None
    if sync.main() != 0:
        raise CommandError("the new files are not in sync; see above")
    _write(tree / "autograder/course/README.md", judging.page(tree))
    if faults := completeness.faults():
        raise CommandError("the tree is not whole: " + "; ".join(faults))
    print(f"made exercise {entry.number:02}, {name}{'' if tree == root() else f', in {tree}'}. To be filled in:")
    for line in completeness.unfilled():
        print(f"  {line}")
    print("`labkit new-exercise --check` prints this list again; docs/new_exercise.md shows how to fill it in.")
    if into is not None and os.environ[OWN_ROOT] != was_set:
        print("The lab finds the folder by this variable, for example in ~/.profile:")
        print(f"  export {OWN_ROOT}={shlex.quote(str(tree))}")
    return 0


def _own_folder(folder: Path) -> Path:
    """Return the folder; in this process the catalogue lists its exercises, if it has any, and those of no other."""
    if overlapping := overlaps_with_lab(folder):
        raise CommandError(
            f"--into: {folder} overlaps with the lab in {overlapping}; choose a folder apart from it, which an upgrade"
            " of the lab leaves alone"
        )
    if catalogue_path(folder).is_file():
        os.environ[OWN_ROOT] = str(folder)
    else:
        os.environ.pop(OWN_ROOT, None)
    return folder


def _begin(folder: Path) -> None:
    """Make the folder of your own exercises if it is not there, and let the catalogue find it in this process."""
    path = catalogue_path(folder)
    if not path.is_file():
        _write(path, _OWN_CATALOGUE)
    os.environ[OWN_ROOT] = str(folder)


def _make(exercise: Exercise, entry: Entry, tree: Path) -> None:
    """Enter the exercise and write its files into a course folder."""
    _enter(entry, tree)
    names = {
        "name": exercise.short_name,
        "phase": exercise.phase,
        "phase_number": exercise.phase[5],
        "number": f"{entry.number:02}",
        "title": entry.title,
        "minutes": str(MINUTES),
        "points": str(POINTS),
    }
    for path, skeleton in _modules(exercise).items():
        if not (tree / path).is_file():  # a phase's package may be there
            _write(tree / path, _filled(skeleton, names))
    _write(exercise.notebook, _notebook(_filled("notebook", names)))
    _add_guidelines(exercise, names)
    _add_to_readme(exercise)


def _modules(exercise: Exercise) -> dict[Path, str]:
    """Return the skeleton of each module that is written by hand, by its path below the course's folder."""
    given, hidden, tests = (completeness.folder(exercise, owner) for owner in completeness.FOLDERS)
    return {
        Path("solutions", exercise.filename): "solution",
        given.parent / "__init__.py": "labkit_phase_package",
        given / "__init__.py": "labkit_package",
        given / "checks.py": "checks",
        given / "questions.py": "questions",
        hidden.parent / "__init__.py": "autograder_phase_package",
        hidden / "__init__.py": "autograder_package",
        hidden / "rubric.py": "rubric",
        hidden / "mutants.py": "mutants",
        hidden / "variants.py": "variants",
        tests / "benchmark.py": "benchmark",
        tests / f"test_{exercise.short_name}.py": "test",
    }


def _entry(exercise: Exercise, number: int | None, tree: Path) -> Entry:
    known = entries()
    if same := [entry.name for entry in known if entry.name.split("/")[1] == exercise.short_name]:
        raise CommandError(f"there is already {same[0]}, in {Exercise(same[0]).root}")
    there = [other.entry for other in exercises_in(tree)]
    if tree == root():
        # phase names begin with their number
        before = [entry.number for entry in there if entry.name.split("/")[0] <= exercise.phase]
        after = [entry.number for entry in there if entry.name.split("/")[0] > exercise.phase]
        first = 1
    else:  # your own exercises follow all of the lab's, whatever their phases
        before, after, first = [entry.number for entry in there], [], FIRST_OWN_NUMBER
    number = max(before, default=first - 1) + 1 if number is None else number
    if same := [entry.name for entry in known if entry.number == number]:
        raise CommandError(f"{number} is the number of {same[0]}: choose another with --number")
    if number > min(after, default=number) or number < first:
        raise CommandError(f"{number} is not a number for {exercise.phase}: choose another with --number")
    title = exercise.short_name.replace("_", " ").capitalize()
    return Entry(number, exercise.name, title, (), MINUTES, POINTS)


def _enter(entry: Entry, tree: Path) -> None:
    """Insert the entry into the catalogue's text, before the first of a higher number."""
    block = (
        f"[[exercise]]  # {completeness.UNFILLED}: title, builds_on, minutes, points\n"
        f'number = {entry.number}\nname = "{entry.name}"\ntitle = "{entry.title}"\n'
        f"builds_on = []\nminutes = {entry.minutes}\npoints = {entry.points}\n"
    )
    path = catalogue_path(tree)
    head, *blocks = re.split(r"(?m)^(?=\[\[exercise\]\])", read_text(path).rstrip() + "\n")
    place = sum(other.entry.number < entry.number for other in exercises_in(tree))
    blocks = [text.rstrip() + "\n" for text in blocks]
    blocks.insert(place, block)
    path.write_text("\n".join([head.rstrip() + "\n", *blocks]))


def _filled(skeleton: str, names: dict[str, str]) -> str:
    return Template((SKELETONS / f"{skeleton}.txt").read_text()).substitute(names)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _notebook(text: str) -> str:
    """Return the notebook of a text in the percent format; cells with solutions and marks get nbgrader's metadata."""
    notebook = jupytext.reads(text, fmt="py:percent")
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3 (ipykernel)"}}
    )
    for cell in notebook.cells:
        cell.id = cell.metadata.pop("id")
        plain = {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False}
        if cell.id == "exercise":
            name = cell.source.split("/")[-1].strip()
            cell.metadata.nbgrader = {**plain, "grade_id": name, "solution": True}
        elif cell.id == "grade":
            name = cell.source.split('"')[1]
            cell.metadata.nbgrader = {
                **plain,
                "grade_id": f"grade_{name}",
                "grade": True,
                "locked": True,
                "points": POINTS,
            }
    return f"{nbformat.writes(notebook)}\n"


def _later_of_phase(exercise: Exercise) -> list[str]:
    """Return short names of the exercises of its course folder that come after it in its phase."""
    number, course = exercise.entry.number, exercises_in(exercise.root)
    return [other.short_name for other in course if other.phase == exercise.phase and other.entry.number > number]


def _add_guidelines(exercise: Exercise, names: dict[str, str]) -> None:
    """Add a section to the phase's guidelines, before that of the next exercise."""
    path = exercise.root / "templates" / exercise.phase / "README.md"
    text = read_text(path) if path.is_file() else _filled("phase", names)
    later = _later_of_phase(exercise)
    before, heading, after = text.partition(f"## `{later[0]}`\n") if later else (text, "", "")
    _write(path, f"{before.rstrip()}\n\n{_filled('guidelines', names)}" + (f"\n{heading}{after}" if later else ""))


def _add_to_readme(exercise: Exercise) -> None:
    """Add a row to the table of README.md; the first row of a phase links to its guidelines."""
    path = exercise.root / "README.md"
    if not path.is_file():
        _write(path, _filled("own_readme", {"variable": OWN_ROOT}))
    lines = read_text(path).splitlines(keepends=True)
    rows = {name: at for at, line in enumerate(lines) if (name := _exercise_of(line))}
    course = exercises_in(exercise.root)
    place = course.index(exercise)
    earlier, later = course[:place], course[place + 1 :]
    if earlier:
        at = rows[earlier[-1].short_name] + 1
    else:
        at = rows[later[0].short_name] if later else lines.index(_TABLE_RULE) + 1
    phase = ""
    if not earlier or earlier[-1].phase != exercise.phase:
        phase = f"[phase {exercise.phase[5]}](templates/{exercise.phase}/README.md): {completeness.UNFILLED} "
        if later and later[0].phase == exercise.phase:  # another exercise had the phase's first row so far
            first = rows[later[0].short_name]
            phase, rest = lines[first][2:].split("|", 1)
            lines[first] = f"| |{rest}"
    lines.insert(at, f"| {phase}| `{exercise.short_name}` | {completeness.UNFILLED} |\n")
    path.write_text("".join(lines))


def _exercise_of(line: str) -> str:
    """Return the short name of the exercise in a row of README.md's table; empty for other lines."""
    row = completeness.README_ROW.match(line)
    return row[2] if row else ""
