"""`labkit new-exercise PHASE/NAME`: every file of a new exercise, from skeletons, and its entry in the catalogue.

The skeleton is a whole exercise whose module sums a tensor, so that an author starts from files that run.
`labkit new-exercise --check` lists what is missing, contradicts the catalogue, or is still to be filled in.
"""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

import jupytext
import nbformat

from autograder.authoring import completeness
from autograder.mutants import judging
from labkit import sync
from labkit.catalogue import Entry, Exercise, all_exercises, catalogue_path, entries, root
from labkit.command_line.commands import CommandError

SKELETONS = Path(__file__).with_name("skeletons")
MINUTES, POINTS = 45, 3


def check() -> int:
    """List what is wrong or unfilled in the course's exercises; return 1 if there is anything."""
    faults, unfilled = completeness.faults(), completeness.unfilled()
    for line in [*faults, *unfilled]:
        print(line)
    print(f"{len(faults)} faults, {len(unfilled)} places to fill in, in {len(all_exercises())} exercises")
    return int(bool(faults or unfilled))


def main(name: str, number: int | None) -> int:
    """Make the exercise `name`, PHASE/NAME, and print what its author fills in. Raises `CommandError`.

    number: its position in the course; None: the one after the last of its phase and of the phases before.
    """
    if not re.fullmatch(r"phase\d_[a-z0-9_]+/[a-z][a-z0-9_]*", name):
        raise CommandError(f"{name!r} is not PHASE/NAME, such as phase3_multi_node/ddp")
    exercise = Exercise(name)
    entry = _entry(exercise, number)
    _enter(entry)
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
        if not (root() / path).is_file():  # a phase's package may be there
            _write(root() / path, _filled(skeleton, names))
    _write(exercise.notebook, _notebook(_filled("notebook", names)))
    _add_guidelines(exercise, names)
    _add_to_readme(exercise)
    if sync.main() != 0:
        raise CommandError("the new files are not in sync; see above")
    _write(root() / "autograder/course/README.md", judging.page())
    if faults := completeness.faults():
        raise CommandError("the tree is not whole: " + "; ".join(faults))
    print(f"made exercise {entry.number:02}, {name}. To be filled in:")
    for line in completeness.unfilled():
        print(f"  {line}")
    print("`labkit new-exercise --check` prints this list again; docs/new_exercise.md shows how to fill it in.")
    return 0


def _modules(exercise: Exercise) -> dict[Path, str]:
    """Return the skeleton of each module that is written by hand, by its path below the course's folder."""
    given, hidden, tests = (completeness.folder(exercise, owner) for owner in completeness.FOLDERS)
    return {
        Path("solutions", exercise.filename): "solution",
        given.parent / "__init__.py": "phase_package",
        given / "__init__.py": "labkit_package",
        given / "checks.py": "checks",
        given / "questions.py": "questions",
        hidden.parent / "__init__.py": "phase_package",
        hidden / "__init__.py": "autograder_package",
        hidden / "rubric.py": "rubric",
        hidden / "mutants.py": "mutants",
        hidden / "variants.py": "variants",
        tests / "benchmark.py": "benchmark",
        tests / f"test_{exercise.short_name}.py": "test",
    }


def _entry(exercise: Exercise, number: int | None) -> Entry:
    known = entries()
    if same := [entry.name for entry in known if entry.name.split("/")[1] == exercise.short_name]:
        raise CommandError(f"there is already {same[0]}")
    # phase names begin with their number
    before = [entry.number for entry in known if entry.name.split("/")[0] <= exercise.phase]
    after = [entry.number for entry in known if entry.name.split("/")[0] > exercise.phase]
    number = max(before, default=0) + 1 if number is None else number
    if same := [entry.name for entry in known if entry.number == number]:
        raise CommandError(f"{number} is the number of {same[0]}: choose another with --number")
    if number > min(after, default=number) or number < 1:
        raise CommandError(f"{number} is not a number for {exercise.phase}: choose another with --number")
    title = exercise.short_name.replace("_", " ").capitalize()
    return Entry(number, exercise.name, title, (), MINUTES, POINTS)


def _enter(entry: Entry) -> None:
    """Insert the entry into the catalogue's text, before the first of a higher number."""
    block = (
        f"[[exercise]]  # {completeness.UNFILLED}: title, builds_on, minutes, points\n"
        f'number = {entry.number}\nname = "{entry.name}"\ntitle = "{entry.title}"\n'
        f"builds_on = []\nminutes = {entry.minutes}\npoints = {entry.points}\n"
    )
    head, *blocks = re.split(r"(?m)^(?=\[\[exercise\]\])", catalogue_path().read_text().rstrip() + "\n")
    place = sum(other.number < entry.number for other in entries())
    blocks = [text.rstrip() + "\n" for text in blocks]
    blocks.insert(place, block)
    catalogue_path().write_text("\n".join([head.rstrip() + "\n", *blocks]))


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
    """Return short names of the exercises that come after it in its phase."""
    number = exercise.entry.number
    return [
        other.short_name for other in all_exercises() if other.phase == exercise.phase and other.entry.number > number
    ]


def _add_guidelines(exercise: Exercise, names: dict[str, str]) -> None:
    """Add a section to the phase's guidelines, before that of the next exercise."""
    path = root() / "templates" / exercise.phase / "README.md"
    text = path.read_text() if path.is_file() else _filled("phase", names)
    later = _later_of_phase(exercise)
    before, heading, after = text.partition(f"## `{later[0]}`\n") if later else (text, "", "")
    _write(path, f"{before.rstrip()}\n\n{_filled('guidelines', names)}" + (f"\n{heading}{after}" if later else ""))


def _add_to_readme(exercise: Exercise) -> None:
    """Add a row to the table of README.md; the first row of a phase links to its guidelines."""
    path = root() / "README.md"
    lines = path.read_text().splitlines(keepends=True)
    rows = {name: at for at, line in enumerate(lines) if (name := _exercise_of(line))}
    order = [each.short_name for each in all_exercises()]
    place = order.index(exercise.short_name)
    at = rows[order[place - 1]] + 1 if place else rows[order[1]]
    phase = ""
    if not place or all_exercises()[place - 1].phase != exercise.phase:
        phase = f"[phase {exercise.phase[5]}](templates/{exercise.phase}/README.md): {completeness.UNFILLED} "
        if later := _later_of_phase(exercise):  # another exercise had the phase's first row so far
            first = rows[later[0]]
            phase, rest = lines[first][2:].split("|", 1)
            lines[first] = f"| |{rest}"
    lines.insert(at, f"| {phase}| `{exercise.short_name}` | {completeness.UNFILLED} |\n")
    path.write_text("".join(lines))


def _exercise_of(line: str) -> str:
    """Return the short name of the exercise in a row of README.md's table; empty for other lines."""
    row = completeness.README_ROW.match(line)
    return row[2] if row else ""
