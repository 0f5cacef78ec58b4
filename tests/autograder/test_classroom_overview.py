"""The class at a glance: who is stuck on which check since when, and which wrong answers are common."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from autograder.classroom.cached_reads import CachedReads
from autograder.classroom.overview.attempts import (
    Attempt,
    StuckLearner,
    WrongAnswer,
    changed_attempts,
    stuck_learners,
    wrong_answers,
)
from autograder.classroom.overview.judged import JudgedExercise, read_verdicts
from autograder.classroom.overview.pace import Pace, paces
from autograder.verdict import Verdict
from autograder.verdicts.store import GradingTask, StoredVerdict, VerdictStore
from labkit.checks import Report
from labkit.checks.check_result import CheckResult


def attempt(day: int, *lost: str, key: str = "", written: bool = True, following: tuple[str, ...] = ()) -> Attempt:
    return Attempt(
        f"2026-12-{day:02}T10:00:00+00:00", JudgedExercise("p/x", key or str(day), 0, 3, lost, following, written)
    )


def test_attempts_without_a_change_or_without_an_answer_do_not_count() -> None:
    first, changed = attempt(2, "a"), attempt(4, "a", "b")
    assert changed_attempts([attempt(1, written=False), first, attempt(3, "a", key="2"), changed]) == [first, changed]


def test_a_learner_is_stuck_on_a_check_since_the_first_attempt_that_lost_it() -> None:
    attempts = {
        ("ada", "p/x"): [attempt(1, "a"), attempt(2), attempt(3, "a"), attempt(4, "a", "b"), attempt(5, "a", "c")],
        ("grace", "p/x"): [attempt(1, "b"), attempt(2, "a")],
        ("alan", "p/x"): [attempt(1, "a", "b", following=("b",)), attempt(2, "a", "b", following=("b",))],
    }
    assert stuck_learners(attempts) == [
        StuckLearner("ada", "p/x", "a", "2026-12-03T10:00:00+00:00", 3),
        StuckLearner("alan", "p/x", "a", "2026-12-01T10:00:00+00:00", 2),
    ]


def test_wrong_answers_are_grouped_by_the_checks_that_the_last_attempt_loses() -> None:
    attempts = {
        ("ada", "p/x"): [attempt(1, "b"), attempt(2, "a", "b")],
        ("grace", "p/x"): [attempt(3, "a", "b")],
        ("alan", "p/x"): [attempt(1, "a")],
        ("emmy", "p/x"): [attempt(1, "a"), attempt(2)],
    }
    assert wrong_answers(attempts) == [
        WrongAnswer("p/x", ("a", "b"), ("grace", "ada")),
        WrongAnswer("p/x", ("a",), ("alan",)),
    ]


def test_the_pace_of_a_class_says_how_long_it_takes_and_where_people_stop() -> None:
    attempts = {
        ("ada", "p/x"): [attempt(1, "a"), attempt(2, "a"), attempt(5), attempt(6, "a")],
        ("alan", "p/x"): [attempt(3)],
        ("emmy", "p/x"): [attempt(1, "a"), attempt(4, "a")],
        ("grace", "p/x"): [attempt(1, "a")],
        ("grace", "p/y"): [attempt(2, "b")],
        ("hedy", "p/x"): [],
    }
    found = paces(attempts, datetime(2026, 12, 12, 10, tzinfo=UTC))
    # ada's later loss does not undo that it was complete; grace has gone on to another exercise, and stopped there
    assert found == {
        "p/x": Pace("p/x", tried=4, complete=2, attempts=2, days=2, stopped=("emmy",)),
        "p/y": Pace("p/y", tried=1, complete=0, attempts=0, days=0, stopped=("grace",)),
    }
    assert paces(attempts, datetime(2026, 12, 11, 9, tzinfo=UTC))["p/x"].stopped == (), "a week has not passed"


def test_learners_see_figures_of_others_only_where_they_are_several() -> None:
    four = {(f"learner{number}", "p/x"): [attempt(1, "a"), attempt(2)] for number in range(4)}
    five = four | {("grace", "p/x"): [attempt(1)]}
    now = datetime(2026, 12, 12, tzinfo=UTC)
    assert not paces(four, now)["p/x"].is_shown_to_learners
    assert paces(five, now)["p/x"].is_shown_to_learners and paces(five, now)["p/x"].attempts == 2


def test_attempts_without_a_time_count() -> None:
    unknown = Attempt("", attempt(1).judged)
    assert paces({("ada", "p/x"): [unknown]}, datetime(2026, 12, 12, tzinfo=UTC)) == {
        "p/x": Pace("p/x", 1, 1, 1, 0, ())
    }


def test_stored_verdicts_are_read_without_the_judge(tmp_path: Path) -> None:
    store, task = VerdictStore(tmp_path), GradingTask("ada", "p", "01_x")
    results = [
        CheckResult("sum", 2, 2),
        CheckResult("order", 1, 0, seen="rank 1 was first"),
        CheckResult("time", 3, 0, seen="2 s", cause="order"),
        CheckResult("GPU", 1, 0, skipped="no GPU"),
    ]
    store.keep(task, StoredVerdict("key", Verdict({"g": Report("p/x", results, 1)}), 0.1))
    (found,) = read_verdicts(tmp_path / "verdicts/ada/p").exercises
    assert found == JudgedExercise("p/x", "key", 2, 6, ("order", "time"), ("time",), written=True)
    for gaps in ([CheckResult("sum", 2, 0)], [CheckResult("sum", 2, 0, seen="it stopped", unwritten=True)]):
        follows = CheckResult("time", 3, 0, seen="nothing", cause="sum")
        store.keep(task, StoredVerdict("key", Verdict({"g": Report("p/x", [*gaps, follows], 1)}), 0.1))
        assert not read_verdicts(tmp_path / "verdicts/ada/p").exercises[0].written
    cut_off = "The file is not a notebook: it is cut off in the middle (line 3)."
    store.keep(
        task, StoredVerdict("key", Verdict({"g": Report("p/x", [CheckResult("sum", 2, 0)], 0)}, (cut_off,)), 0.1)
    )
    assert read_verdicts(tmp_path / "verdicts/ada/p").exercises[0].why == cut_off
    store.fail(task, "no memory", 1)
    (tmp_path / "verdicts/ada/p/02_y.json").write_text("{damaged")
    verdicts = read_verdicts(tmp_path / "verdicts/ada/p")
    assert verdicts.failed == {"01_x"} and len(verdicts.exercises) == 1


def test_a_folder_is_read_again_only_after_a_change(tmp_path: Path) -> None:
    reads: list[int] = []

    def read(folder: Path) -> list[str]:
        reads.append(1)
        return sorted(os.listdir(folder)) if folder.exists() else []

    cached = CachedReads(read)
    assert cached(tmp_path / "none") == []
    (tmp_path / "a").write_text("")
    os.utime(tmp_path, (1e10, 1e10))  # just now, however slow this test is
    cached(tmp_path), cached(tmp_path)
    assert len(reads) == 3, "so soon after a change nothing is remembered"
    os.utime(tmp_path, (1e9, 1e9))
    assert cached(tmp_path) == cached(tmp_path) == ["a"] and len(reads) == 4
    (tmp_path / "b").write_text("")
    assert cached(tmp_path) == ["a", "b"]
