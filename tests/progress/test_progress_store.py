"""Saved results: nothing is lost when kernels write at the same time, or when a file is broken."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from labkit.catalogue import UnknownExercise, find
from labkit.progress import FailedCheck, answers, record_answer, record_check, recorded


def saved(workspace: Path) -> Path:
    return workspace / ".progress/phase1_data_parallel/trainer.json"


def test_the_best_result_stays_beside_the_last() -> None:
    assert recorded("trainer").checked is None
    for earned in (5, 25, 17.5):
        record_check("trainer", earned, 25)
    checked = recorded(find("trainer")).checked
    assert checked is not None
    assert (checked.last, checked.best, checked.points) == (17.5, 25, 25)
    assert "" != checked.best_at <= checked.last_at
    assert recorded("collectives").checked is None


def test_failed_checks_are_those_of_the_last_time(workspace: Path) -> None:
    failed = [FailedCheck(2, "sums are equal"), FailedCheck(3, "in one message")]
    record_check("trainer", 5, 25, failed)
    checked = recorded("trainer").checked
    assert checked is not None and checked.failed == failed
    data = json.loads(saved(workspace).read_text())
    data["checked"]["failed"][0]["todo"] = "two"
    saved(workspace).write_text(json.dumps(data))
    checked = recorded("trainer").checked
    assert checked is not None and checked.failed == failed[1:]
    record_check("trainer", 25, 25)
    checked = recorded("trainer").checked
    assert checked is not None and checked.failed == []


def test_a_right_answer_stays_right() -> None:
    for tries, right in ((1, False), (2, True), (3, False)):
        record_answer("trainer", "step-time", tries, right)
    record_answer("trainer", "bytes", 1, False)
    found = answers("phase1_data_parallel/trainer")
    assert {key: (answer.tries, answer.right) for key, answer in found.items()} == {
        "step-time": (2, True),
        "bytes": (1, False),
    }


def test_an_unknown_exercise_is_refused(workspace: Path) -> None:
    with pytest.raises(UnknownExercise):
        record_check("trainr", 1, 25)
    assert not workspace.exists()


@pytest.mark.parametrize("content", [b'{"checked": {"last": 1', b"\xff\xfe", b"[1, 2]", b""])
def test_a_broken_file_is_kept_aside(workspace: Path, content: bytes) -> None:
    saved(workspace).parent.mkdir(parents=True)
    saved(workspace).write_bytes(content)
    assert recorded("trainer").checked is None
    record_check("trainer", 5, 25)
    checked = recorded("trainer").checked
    assert checked is not None and checked.best == 5
    (kept,) = saved(workspace).parent.glob("trainer.json.broken-*")
    assert kept.read_bytes() == content


def test_fields_of_another_version_are_kept_and_unreadable_ones_ignored(workspace: Path) -> None:
    saved(workspace).parent.mkdir(parents=True)
    answered = {"a": 3, "b": {"tries": 1, "right": True}}
    old = {"checked": {"best": "many", "note": "mine"}, "answers": answered, "more": 1}
    saved(workspace).write_text(json.dumps(old))
    assert recorded("trainer").checked is None
    assert list(answers("trainer")) == ["b"]
    record_check("trainer", 5, 25)
    data = json.loads(saved(workspace).read_text())
    assert (data["more"], data["checked"]["note"], data["answers"]) == (1, "mine", answered)


def write_many(writer: int) -> None:
    for number in range(5):
        record_answer("trainer", f"{writer}-{number}", 1, True)
        record_check("trainer", writer + number, 25)


def test_kernels_that_write_at_the_same_time_lose_nothing(workspace: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(writer,)) for writer in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    checked = recorded("trainer").checked
    assert len(answers("trainer")) == 20
    assert checked is not None and checked.best == 7
    assert sorted(path.name for path in saved(workspace).parent.iterdir()) == ["trainer.json", "trainer.lock"]
