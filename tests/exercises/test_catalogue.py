"""The catalogue: which exercises exist, and whose module is being worked on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from labkit import exercises


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "course"
    for name in (
        "templates/phase1_small/double.py",
        "solutions/phase1_small/double.py",
        "solutions/phase2_big/treble.py",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'__all__ = ["{path.stem}"]\nORIGIN = "{path.parts[-3]}"\n')
    monkeypatch.setenv("LABKIT_ROOT", str(folder))
    return folder


@pytest.mark.usefixtures("course")
def test_an_exercise_exists_when_a_template_or_a_solution_does() -> None:
    assert [e.name for e in exercises.catalogue()] == ["phase1_small/double", "phase2_big/treble"]
    double = exercises.find("double")
    assert double == exercises.find("phase1_small/double")
    assert (double.phase, double.short_name, double.public_names) == ("phase1_small", "double", ("double",))


def test_a_phase_has_the_order_in_which_its_guidelines_take_it(course: Path) -> None:
    for name in ("a_first", "z_last"):
        (course / f"templates/phase1_small/{name}.py").write_text("")
    (course / "templates/phase1_small/README.md").write_text("# Small\n\n## `z_last`\n\n## Ways\n\n## `double`\n")
    assert [e.short_name for e in exercises.catalogue()] == ["z_last", "double", "a_first", "treble"]


@pytest.mark.usefixtures("course")
def test_an_unknown_name_gets_the_nearest_ones() -> None:
    with pytest.raises(exercises.UnknownExercise, match="no exercise is called 'duoble'; did you mean double"):
        exercises.find("duoble")
    with pytest.raises(exercises.UnknownExercise, match="there are: phase1_small/double, phase2_big/treble"):
        exercises.find("xyz")


@pytest.mark.usefixtures("course")
def test_the_learners_module_comes_first_and_no_version_is_lost(workspace: Path) -> None:
    double = exercises.find("double")
    assert double.source()[1] == "template"
    for text in ("first", "second", "second", "third"):
        double.save(text)
    assert double.source() == ("third", "yours")
    assert double.source("solution")[1] == "solution"
    history = sorted((workspace / ".history/phase1_small/double").iterdir())
    assert [path.read_text() for path in history] == ["first", "second"]


@pytest.mark.usefixtures("course")
def test_an_exercise_without_module_says_what_to_do() -> None:
    with pytest.raises(exercises.MissingModule, match="run its %%exercise cell, or copy"):
        exercises.find("treble").source()


@pytest.mark.usefixtures("course")
def test_the_module_under_work_can_be_imported() -> None:
    from labkit.exercises import double  # type: ignore[attr-defined]

    assert double.ORIGIN == "templates"
    with pytest.raises(ImportError, match="duoble"):
        from labkit.exercises import duoble  # type: ignore[attr-defined]  # noqa: F401


def test_each_thread_has_the_modules_of_its_own_job() -> None:
    """Virtual ranks are threads of one process: a rank must not see the module state of another."""
    seen: dict[int, list[int]] = {}

    def rank(number: int) -> None:
        exercises.install({"phase1_small/double": "state = []\n"})
        exercises.double.state.append(number)
        seen[number] = exercises.double.state

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {0: [0], 1: [1], 2: [2]}


def test_a_job_has_only_the_modules_that_came_with_it() -> None:
    def rank() -> None:
        exercises.install({"phase1_small/double": "x = 1\n"})
        try:
            exercises.__getattr__("treble")
        except AttributeError as error:
            said.append(str(error))

    said: list[str] = []
    thread = threading.Thread(target=rank)
    thread.start()
    thread.join()
    assert "exercise 'treble' was not shipped with this job" in said[0]
