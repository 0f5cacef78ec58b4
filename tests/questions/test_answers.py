"""Answers outlive a kernel, and count in the learner's progress."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.catalogue import find as find_exercise
from labkit.progress import answers
from labkit.questions import Attempt, Number, UnknownQuestion, Verdict, answered, attempt_at, find, save

exercise_of_rounds, tree_rounds = find("tree_rounds")


def attempt(given: str) -> Attempt:
    return save(exercise_of_rounds, tree_rounds, given, tree_rounds.judge(given, {}))


def test_a_question_is_found_by_its_name_in_the_whole_course() -> None:
    assert exercise_of_rounds == find_exercise("collectives")
    assert find("busiest")[0] == find_exercise("ring_allreduce")
    with pytest.raises(UnknownQuestion, match="no question is called 'tree_round'; did you mean tree_rounds"):
        find("tree_round")


def test_the_last_attempt_is_kept_and_counted() -> None:
    assert attempt_at(exercise_of_rounds, tree_rounds) == Attempt()
    assert answered("tree_rounds") is None
    first = attempt("10")
    assert (first.verdict, first.tries) == (Verdict.WRONG, 1)
    assert attempt_at(exercise_of_rounds, tree_rounds) == first
    assert answered("tree_rounds") == 10
    attempt("2 * 10")
    assert answered("tree_rounds") == 20
    assert attempt_at(exercise_of_rounds, tree_rounds).verdict is Verdict.RIGHT
    counted = answers("collectives")["tree_rounds"]
    assert (counted.tries, counted.right) == (2, True)


def test_a_typing_error_is_no_try_and_keeps_what_was_saved() -> None:
    attempt("10")
    assert attempt("3,5").verdict is Verdict.UNREAD
    assert attempt_at(exercise_of_rounds, tree_rounds).given == "10"
    assert answers("collectives")["tree_rounds"].tries == 1


def test_an_answer_that_was_seen_does_not_count_as_right() -> None:
    assert [attempt(given).may_reveal for given in ("1", "2", "3")] == [False, False, True]
    seen = save(exercise_of_rounds, tree_rounds, "3", tree_rounds.reveal({}))
    assert (seen.verdict, seen.tries, seen.may_reveal) == (Verdict.SEEN, 3, False)
    assert attempt("20").verdict is Verdict.RIGHT
    assert not answers("collectives")["tree_rounds"].right


def test_a_prediction_counts_when_it_is_made() -> None:
    exercise, busiest = find("busiest")
    assert isinstance(busiest, Number)
    assert save(exercise, busiest, "255", busiest.judge("255", {})).verdict is Verdict.NOTED
    assert answered("busiest") == 255
    assert answers(exercise)["busiest"].right


def test_a_file_that_cannot_be_read_counts_as_no_answer(workspace: Path) -> None:
    attempt("10")
    (workspace / ".answers" / f"{exercise_of_rounds.name}.json").write_text('{"tree_rounds": {"given": 3}, "other": ')
    assert attempt_at(exercise_of_rounds, tree_rounds) == Attempt()
    assert attempt("20").verdict is Verdict.RIGHT
