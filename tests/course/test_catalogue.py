"""The catalogue: which exercises exist, what is known of each, and whose module is being worked on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from labkit import catalogue


def entry(number: int, name: str, builds_on: str = "") -> str:
    return (
        f'[[exercise]]\nnumber = {number}\nname = "{name}"\ntitle = "Title"\n'
        f"builds_on = [{builds_on}]\nminutes = 45\npoints = 25\n"
    )


DOUBLE, TREBLE = entry(1, "phase1_small/double"), entry(7, "phase2_big/treble", "'double'")


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
    (folder / "labkit").mkdir()
    (folder / "labkit/catalogue.toml").write_text(DOUBLE + TREBLE)
    monkeypatch.setenv("LABKIT_ROOT", str(folder))
    return folder


@pytest.mark.usefixtures("course")
def test_an_exercise_exists_when_the_catalogue_lists_it() -> None:
    assert [e.name for e in catalogue.all_exercises()] == ["phase1_small/double", "phase2_big/treble"]
    double = catalogue.find("double")
    assert double == catalogue.find("phase1_small/double")
    assert (double.phase, double.short_name, double.public_names) == ("phase1_small", "double", ("double",))
    assert (double.entry.number, double.entry.minutes, double.entry.points) == (1, 45, 25)


def test_a_course_without_a_catalogue_has_the_installed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    assert catalogue.find("ring_allreduce").entry.number == 10


def test_what_is_built_on_includes_what_that_builds_on(course: Path) -> None:
    entries = [DOUBLE, entry(2, "phase1_small/other"), TREBLE, entry(8, "phase2_big/more", "'treble'")]
    (course / "labkit/catalogue.toml").write_text("\n".join(entries))
    assert [e.short_name for e in catalogue.find("more").builds_on] == ["double", "treble"]
    assert catalogue.find("double").builds_on == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (TREBLE + DOUBLE, "phase2_big/treble builds on double, which must come before it"),
        (entry(7, "phase1_small/double") + TREBLE, "number 7 of phase2_big/treble must be above 7"),
        (DOUBLE + entry(2, "phase2_big/double"), "has the short name of an earlier exercise"),
    ],
)
def test_a_catalogue_that_contradicts_itself_is_refused(course: Path, text: str, problem: str) -> None:
    (course / "labkit/catalogue.toml").write_text(text)
    with pytest.raises(ValueError, match=problem):
        catalogue.all_exercises()


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
def test_who_reads_a_module_while_it_is_saved_reads_a_whole_one() -> None:
    double = catalogue.find("double")
    texts = ("a" * 200_000, "b" * 300_000)
    double.save(texts[0])
    done = threading.Event()

    def saves() -> None:
        for turn in range(40):
            double.save(texts[turn % 2])
        done.set()

    saving = threading.Thread(target=saves)
    saving.start()
    seen = set()
    while not done.is_set():
        seen.add(double.paths["yours"].read_text())
    saving.join()
    assert seen <= set(texts)


@pytest.mark.usefixtures("course")
def test_an_exercise_without_module_says_what_to_do() -> None:
    with pytest.raises(catalogue.MissingModule, match="run its %%exercise cell, or copy"):
        catalogue.find("treble").source()
