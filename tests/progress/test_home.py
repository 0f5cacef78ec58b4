"""What a learner reads about the course: the page, the table, and where to continue."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from labkit import cli
from labkit.catalogue import all_exercises, find
from labkit.checks import check_exercise
from labkit.progress import course_progress, home_path, record_answer, record_check, recorded, write_home
from labkit.progress.home import GUIDES


def where_to_continue() -> str:
    following = course_progress().next
    return following.exercise.short_name if following else ""


def facts() -> dict[str, Any]:
    found = re.search(r"<!-- labkit (.*) -->\n\Z", home_path().read_text())
    assert found is not None
    data = json.loads(found[1])
    assert isinstance(data, dict)
    return data


def test_one_continues_with_what_was_touched_last_until_it_is_complete() -> None:
    assert where_to_continue() == "process_group"
    record_check("data_loader", 10, 24)
    assert where_to_continue() == "data_loader"
    record_check("data_loader", 24, 24)
    assert where_to_continue() == "trainer"
    module = find("mixed_precision").save("x = 1\n")
    os.utime(module, (4e9, 4e9))
    assert where_to_continue() == "mixed_precision"
    for exercise in all_exercises():
        record_check(exercise, exercise.entry.points, exercise.entry.points)
    assert where_to_continue() == ""


def test_the_page_follows_what_is_recorded(workspace: Path) -> None:
    assert write_home() == workspace / "HOME.md"
    text = home_path().read_text()
    assert "**Continue here: [01 · Process groups](phase1_data_parallel/01_process_group.ipynb)**, 40 minutes." in text
    record_check("trainer", 17, 25)
    record_check("trainer", 12.5, 25)
    record_answer("trainer", "bytes", 1, True)
    text = home_path().read_text()
    assert "(phase1_data_parallel/04_trainer.ipynb) | 02 | 60 | 17 of 25 (last 12.5) | begun |" in text
    points = sum(exercise.entry.points for exercise in all_exercises())
    assert f"17 of {points} points, 0 of {len(all_exercises())} exercises complete." in text
    (shown,) = (one for phase in facts()["phases"] for one in phase["exercises"] if one["number"] == 4)
    assert (shown["builds_on"], shown["answers"], shown["share"], facts()["next"]) == ([2], 1, 17 / 25, 4)


def test_every_exercise_is_on_the_page_and_its_titles_cannot_end_the_comment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "labkit").mkdir()
    (tmp_path / "labkit/catalogue.toml").write_text(
        '[[exercise]]\nnumber = 3\nname = "phase1_small/double"\ntitle = "a --> b"\n'
        "builds_on = []\nminutes = 5\npoints = 2\n"
    )
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    write_home()
    (phase,) = facts()["phases"]
    assert (phase["title"], phase["exercises"][0]["label"]) == ("Phase 1: small", "03 · a --> b")


def test_the_table_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    record_check("trainer", 17, 25)
    assert cli.main(["progress"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "01 · Process groups 40 0 of 25 not begun" in lines
    assert "04 · A data-parallel trainer 02 60 17 of 25 begun" in lines
    assert "continue here: 04 · A data-parallel trainer, phase1_data_parallel/04_trainer.ipynb" in lines


def test_a_check_of_ones_own_module_is_recorded_and_no_other(workspace: Path) -> None:
    exercise = find("collectives")
    check_exercise(exercise)
    check_exercise(exercise, exercise.source("template")[0])
    assert recorded(exercise).checked is None
    exercise.save(exercise.source("template")[0])
    check_exercise(exercise)
    checked = recorded(exercise).checked
    assert checked is not None and (checked.best, checked.points) == (0, exercise.entry.points)
    assert "| 0 of 20 | begun |" in home_path().read_text()


def test_a_workspace_that_cannot_be_written_costs_no_report(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exercise = find("collectives")
    exercise.save(exercise.source("template")[0])
    (workspace / ".progress").write_text("a file in the folder's place")
    assert check_exercise(exercise).earned == 0
    assert "collectives could not be saved in the workspace" in capsys.readouterr().err


@pytest.mark.parametrize("course", ["around the workspace", "elsewhere"])
def test_guides_are_offered(
    workspace: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, course: str
) -> None:
    folder = workspace.parent if course == "around the workspace" else tmp_path_factory.mktemp("course")
    monkeypatch.setattr("labkit.progress.home.root", lambda: folder)
    assert "## Guides" not in write_home().read_text(), "a course without guides"
    (folder / "docs").mkdir()
    for _, name in GUIDES:
        (folder / "docs" / name).touch()
    links = re.findall(r"^- \[.+\]\((.+)\)$", write_home().read_text(), re.MULTILINE)
    assert len(links) == len(GUIDES) and all((workspace / link).is_file() for link in links)
    assert (workspace / "docs").exists() == (course == "elsewhere"), (
        "JupyterLab opens nothing outside of what it serves"
    )


def test_a_link_to_the_guides_follows_the_course_and_replaces_nothing(
    workspace: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("course")
    (folder / "docs").mkdir()
    (folder / "docs" / GUIDES[0][1]).touch()
    monkeypatch.setattr("labkit.progress.home.root", lambda: folder)
    link = workspace / "docs"
    workspace.mkdir(exist_ok=True)
    link.symlink_to(folder / "moved away")
    write_home()
    assert link.resolve() == (folder / "docs").resolve()
    link.unlink()
    link.mkdir()
    assert "## Guides" not in write_home().read_text()
    assert link.is_dir() and not link.is_symlink(), "the learner's own"


def test_on_a_hub_the_course_s_page_is_one_link_away(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "What you have submitted" not in write_home().read_text()
    monkeypatch.setenv("LABKIT_CLASSROOM_PAGE", "/services/classroom/")
    text = write_home().read_text()
    assert "[What you have submitted, your place in the queue, and challenges](/services/classroom/)" in text
