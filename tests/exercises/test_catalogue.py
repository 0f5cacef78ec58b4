"""The catalogue: which exercises exist, and whose module is being worked on."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit import catalogue


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
    assert [e.name for e in catalogue.all_exercises()] == ["phase1_small/double", "phase2_big/treble"]
    double = catalogue.find("double")
    assert double == catalogue.find("phase1_small/double")
    assert (double.phase, double.short_name, double.public_names) == ("phase1_small", "double", ("double",))


def test_a_phase_has_the_order_in_which_its_guidelines_take_it(course: Path) -> None:
    for name in ("a_first", "z_last"):
        (course / f"templates/phase1_small/{name}.py").write_text("")
    (course / "templates/phase1_small/README.md").write_text("# Small\n\n## `z_last`\n\n## Ways\n\n## `double`\n")
    assert [e.short_name for e in catalogue.all_exercises()] == ["z_last", "double", "a_first", "treble"]


@pytest.mark.usefixtures("course")
def test_an_unknown_name_gets_the_nearest_ones() -> None:
    with pytest.raises(catalogue.UnknownExercise, match="no exercise is called 'duoble'; did you mean double"):
        catalogue.find("duoble")
    with pytest.raises(catalogue.UnknownExercise, match="there are: phase1_small/double, phase2_big/treble"):
        catalogue.find("xyz")


@pytest.mark.usefixtures("course")
def test_the_learners_module_comes_first_and_no_version_is_lost(workspace: Path) -> None:
    double = catalogue.find("double")
    assert double.source()[1] == "template"
    for text in ("first", "second", "second", "third"):
        double.save(text)
    assert double.source() == ("third", "yours")
    assert double.source("solution")[1] == "solution"
    history = sorted((workspace / ".history/phase1_small/double").iterdir())
    assert [path.read_text() for path in history] == ["first", "second"]


@pytest.mark.usefixtures("course")
def test_an_exercise_without_module_says_what_to_do() -> None:
    with pytest.raises(catalogue.MissingModule, match="run its %%exercise cell, or copy"):
        catalogue.find("treble").source()
