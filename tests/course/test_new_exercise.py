"""`labkit new-exercise` makes a whole exercise that runs, wherever it is put in the course."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import catalogue
from labkit.cli import main

PARTS = ("labkit", "autograder", "solutions", "templates", "notebooks", "benchmarks", "docs", "tests/course")

STEPS = """
import json, sys
from pathlib import Path

import labkit
from autograder.authoring import completeness
from autograder.mutants import Mutants, Variants, judging
from labkit import catalogue
from labkit.checks import Ranks, Submission, run_checks, visible_rubric
from labkit.cli import main

LATER = "phase5_research"
assert Path(labkit.__file__).is_relative_to(Path.cwd())
for words in (["phase4_production/first"], [f"{LATER}/third", "--number", "90"], [f"{LATER}/second", "--number", "80"]):
    assert main(["new-exercise", *words]) == 0, words
assert main(["sync", "--check"]) == 0
assert completeness.faults() == []

exercise = catalogue.find("first")
marks = {}
rubric = next(one for one in judging.rubrics() if one.exercise == exercise)
texts = {"solution": exercise.source("solution")[0], "template": exercise.source("template")[0]}
for others in (Variants(exercise), Mutants(exercise)):
    texts |= {name: others.text(name) for name in others}
for name, text in texts.items():
    reports = [run_checks(checks, Submission(exercise, text), Ranks()) for checks in (visible_rubric(exercise), rubric)]
    marks[name] = [report.earned for report in reports]
print("RESULT", json.dumps([[[e.number, e.name] for e in catalogue.entries()], marks, completeness.unfilled()]))
"""

GUIDE = """
import json, re
from pathlib import Path

from autograder.mutants import Mutants, Variants, judging
from labkit import catalogue
from labkit.checks import Ranks, Submission, run_checks, visible_rubric
from labkit.cli import main

page = Path("docs/new_exercise.md").read_text()
assert main(re.search(r"^    ./lab (new-exercise .*)$", page, re.MULTILINE)[1].split()) == 0
blocks = re.findall(r"^```python\\n# (\\S+)\\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
for path, text in blocks:
    assert Path(path).is_file(), "the command has made every file that the guide fills in"
    Path(path).write_text(text)
assert main(["sync"]) == 0

exercise = catalogue.find("mean_loss")
rubric = next(one for one in judging.rubrics() if one.exercise == exercise)
texts = {"the solution": exercise.source("solution")[0], "the template": exercise.source("template")[0]}
for others in (Variants(exercise), Mutants(exercise)):
    texts |= {name: others.text(name) for name in others}
marks = {}
for name, text in texts.items():
    reports = [run_checks(checks, Submission(exercise, text), Ranks()) for checks in (visible_rubric(exercise), rubric)]
    marks[name] = [report.earned for report in reports]
stated = {row.name: row.marks for row in judging.stated(rubric)}
assert {name: graded for name, (_, graded) in marks.items()} == stated
print("RESULT", json.dumps([[path for path, _ in blocks], marks]))
"""
"""Makes the guide's exercise from its blocks and runs both rubrics on it."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for part in PARTS:
        shutil.copytree(catalogue.root() / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for page in ("README.md", "pyproject.toml"):
        shutil.copyfile(catalogue.root() / page, tmp_path / page)
    return tmp_path


def run(tree: Path, *command: str | Path) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LABKIT_")}
    environment |= {"PYTHONPATH": str(tree), "LABKIT_WORKSPACE": str(tree / "workspace")}
    done = subprocess.run([sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_skeleton_is_a_whole_exercise_that_runs(tree: Path) -> None:
    output = run(tree, "-c", STEPS)
    entries, marks, unfilled = json.loads(output.rpartition("RESULT ")[2])
    last = catalogue.entries()[-1]
    assert entries[-4:] == [
        [last.number, last.name],
        [last.number + 1, "phase4_production/first"],
        [80, "phase5_research/second"],
        [90, "phase5_research/third"],
    ]
    assert marks == {"solution": [3, 3], "template": [0, 0], "gathers": [3, 3], "sends_twice": [3, 2]}
    places = "\n".join(unfilled)
    assert places in output.replace("\n  ", "\n")
    for file in ("labkit/catalogue.toml", "solutions/phase4_production/first.py", "README.md", "notebooks/phase5"):
        assert file in places
    readme = (tree / "README.md").read_text()
    assert (
        "\n| [phase 5](templates/phase5_research/README.md): TODO(author) | `second` | TODO(author) |\n| | `third` |"
        in readme
    )

    tests = [
        "phase4_production/first/test_first.py",
        "test_complete.py::test_every_exercise_is_complete_and_agrees_with_the_catalogue",
    ]
    run(tree, "-m", "pytest", "-q", *(f"tests/course/{test}" for test in tests))
    run(tree, "-m", "ruff", "check", "--no-cache", ".")
    run(tree, "-m", "ruff", "format", "--no-cache", "--check", ".")
    assert "equal" in run(tree, "benchmarks/solutions.py", "first", "--quick")


def test_the_guide_leads_to_an_exercise_with_the_marks_that_it_states(tree: Path) -> None:
    files, marks = json.loads(run(tree, "-c", GUIDE).rpartition("RESULT ")[2])
    assert len(files) == 5
    assert {name: marks[name] for name in ("the solution", "the template", "gathers")} == {
        "the solution": [3, 3],
        "the template": [0, 0],
        "gathers": [3, 3],
    }
    assert marks["mean_of_means"] == [0, 1]
    run(tree, "-m", "ruff", "check", "--no-cache", *files)
    run(tree, "-m", "ruff", "format", "--no-cache", "--check", *files)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["first"], "'first' is not PHASE/NAME"),
        (["phase3_multi_node/trainer"], "there is already phase1_data_parallel/trainer"),
        (["phase2_advanced/first"], "10 is the number of phase3_multi_node/ring_allreduce"),
        (["phase2_advanced/first", "--number", "90"], "90 is not a number for phase2_advanced"),
        ([], "give either the name of the new exercise"),
    ],
)
def test_a_name_or_number_that_does_not_fit_is_refused(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new-exercise", *words]) == 2
    assert problem in capsys.readouterr().err


def test_the_check_lists_nothing_in_a_finished_course(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-exercise", "--check"]) == 0
    assert capsys.readouterr().out == "0 faults, 0 places to fill in, in " + f"{len(catalogue.entries())} exercises\n"
