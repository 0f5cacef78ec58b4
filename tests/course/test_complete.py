"""Each exercise of the catalogue is whole, and no file belongs to an exercise that is not in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autograder.authoring import completeness
from labkit import catalogue

RING = "phase3_multi_node/ring_allreduce"
NOTEBOOK = "notebooks/phase3_multi_node/10_ring_allreduce.ipynb"


def test_every_exercise_is_complete_and_agrees_with_the_catalogue() -> None:
    assert completeness.faults() == []


def test_nothing_is_left_to_fill_in() -> None:
    assert completeness.unfilled() == []


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files of all exercises."""
    kept = [path for exercise in catalogue.all_exercises() for path in completeness.files(exercise)]
    kept += completeness.pages({exercise.phase for exercise in catalogue.all_exercises()})
    for part in ("mutants/", "variants/", "variants.py"):
        kept += [path.relative_to(catalogue.root()) for path in catalogue.root().glob(f"autograder/course/*/*/{part}")]
    for path in kept:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (catalogue.root() / path).is_dir() else shutil.copyfile
        copy(catalogue.root() / path, tmp_path / path)
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    return tmp_path


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("path", completeness.files(catalogue.find(RING)), ids=str)
def test_a_missing_file_is_named(tree: Path, path: Path) -> None:
    (tree / path).rename(tree / "elsewhere")
    assert f"{path} is missing" in completeness.faults()


def test_an_exercise_without_variants_is_named(tree: Path) -> None:
    for path in (tree / "autograder/course" / RING).glob("variants*"):
        path.rename(tree / path.name)
    assert completeness.faults() == [f"autograder/course/{RING} has no variant, in variants.py or variants/"]


def test_a_file_of_no_exercise_is_named(tree: Path) -> None:
    assert completeness.faults() == []
    (tree / f"solutions/{RING}2.py").touch()
    assert completeness.faults() == [f"solutions/{RING}2.py belongs to no exercise of catalogue.toml"]


@pytest.mark.parametrize(
    ("owner", "name"), [("labkit", "check.py"), ("autograder", "mutant.py"), ("tests", "ring_allreduce_test.py")]
)
def test_a_file_of_another_name_in_an_exercise_s_folder_is_named(owner: str, name: str, tree: Path) -> None:
    (tree / owner / "course" / RING / name).touch()
    (fault,) = completeness.faults()
    assert fault.startswith(f"{owner}/course/{RING}/{name} has a name that nothing looks for")


@pytest.mark.parametrize(
    ("path", "old", "new", "fault"),
    [
        (NOTEBOOK, "| time | 45 minutes", "| time | 54 minutes", "does not give 45 minutes"),
        (NOTEBOOK, '"points": 25', '"points": 24', "does not grade it with 25 points"),
        (NOTEBOOK, "exercise 02, `coll", "exercise 03, `coll", "has number 02, not 03"),
        (f"autograder/course/{RING}/rubric.py", "@check(points=", "@check(points=1 + ", "points, not 25"),
        (f"autograder/course/{RING}/rubric.py", "todo=2", "todo=5", "names TODO 5, which the template does not have"),
        (f"templates/{RING}.py", "# TODO 4. ", "# ", "has hints for the TODOs [1, 2, 3, 4], not [1, 2, 3]"),
        (f"solutions/{RING}.py", "import torch\n", "import torch\nfrom labkit.exercises import trainer\n", "imports"),
        ("templates/phase1_data_parallel/README.md", "## `trainer`", "## trainer", "its headings are"),
        (NOTEBOOK, '"%question crossing"', '"%question crosses"', "it asks the questions"),
        (f"labkit/course/{RING}/questions.py", '"crossing"', '"tree_rounds"', "have a question called tree_rounds"),
        ("README.md", "`tensor_parallel`", "`tensor_parallelism`", "its table lists"),
        ("labkit/catalogue.toml", "number = 26", "number = 27", "production/27_llm_13b.ipynb is missing"),
        ("labkit/catalogue.toml", '"Process groups"', '"Groups of processes"', "the title is not"),
    ],
)  # fmt: skip
def test_a_fact_that_differs_from_the_catalogue_is_named(tree: Path, path: str, old: str, new: str, fault: str) -> None:
    replace(tree / path, old, new)
    assert any(fault in one for one in completeness.faults()), completeness.faults()
