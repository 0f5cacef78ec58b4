"""Entries of challenges as the classroom reads them, and the standings that follow from what is kept."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path

import pytest

from autograder.classroom.challenges.entries import assignment_of, course_entries, received, withdrawal_of
from autograder.classroom.challenges.grader import EntryGrader
from autograder.classroom.challenges.leaderboard import Judgement, Leaderboard, Standing
from autograder.classroom.challenges.look_alikes import look_alike
from autograder.classroom.grading_queue import Done, GradingQueue
from autograder.intake.limits import EntryRefused
from autograder.sandbox import Sandbox
from labkit.challenges import sending
from labkit.challenges.challenge import Outcome, find
from labkit.trace import Event, Kind, Trace


def sent(folder: Path, name: str = "The Tortoise", source: str = "class Policy: ...\n") -> Path:
    folder.mkdir(parents=True)
    (folder / "name.txt").write_text(name)
    (folder / "entry.py").write_text(source)
    return folder


def test_an_entry_is_read_with_its_name(tmp_path: Path) -> None:
    entry = received(sent(tmp_path / "one"), ["ada"], ["Hare"])
    assert (entry.name, entry.source) == ("The Tortoise", "class Policy: ...\n")


@pytest.mark.parametrize("name", ["Ada", "h a r e", "BOUND", "Ring"])
def test_names_of_users_of_others_and_of_the_course_s_entries_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(EntryRefused, match="somebody else has it or one that looks like it, or it is a user's name"):
        received(sent(tmp_path / "one", name), ["ada"], ["Hare", *course_entries("all_reduce")])


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("H\u0430re", "Hare"),  # a Cyrillic letter
        ("\u041d\u0410RE", "Hare"),  # two Cyrillic capitals
        ("\u03a1arrot", "Parrot"),  # a Greek capital
        ("lda", "Ida"),
        ("T0rt0ise", "Tortoise"),
        ("Barney", "Bamey"),
        ("hare", "HARE"),
        ("H-a.r e", "Hare"),
    ],
)
def test_names_that_look_alike_are_refused(tmp_path: Path, name: str, other: str) -> None:
    assert look_alike(name, [other]) and look_alike(other, [name])
    with pytest.raises(EntryRefused, match="one that looks like it"):
        received(sent(tmp_path / "one", name), [], [other])


@pytest.mark.parametrize(("name", "other"), [("Tide", "Tlde"), ("Maria", "Mario"), ("Żółć", "Zorc"), ("学生", "先生")])
def test_names_that_differ_for_a_reader_are_not_refused(name: str, other: str) -> None:
    assert not look_alike(name, [other])


def test_a_hostile_folder_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret of the course")
    linked = sent(tmp_path / "linked")
    (linked / "entry.py").unlink()
    (linked / "entry.py").symlink_to(tmp_path / "secret")
    large = sent(tmp_path / "large", source="#" * 100_001)
    pipe = sent(tmp_path / "pipe")
    (pipe / "name.txt").unlink()
    os.mkfifo(pipe / "name.txt")
    nameless = sent(tmp_path / "nameless")
    (nameless / "name.txt").unlink()
    markup = sent(tmp_path / "markup", "<script>alert(1)</script>")
    binary = sent(tmp_path / "binary")
    (binary / "entry.py").write_bytes(b"\xff")
    for folder, reason in {
        linked: "entry.py was not read: it is a link",
        large: "entry.py was not read: it is larger than 0.1 MB",
        pipe: "name.txt was not read: it is not a regular file",
        nameless: "it has no name.txt",
        markup: "a name in the standings has letters, digits",
        binary: "entry.py: line 1 is not UTF-8 text",
    }.items():
        with pytest.raises(EntryRefused, match=reason):
            received(folder, [], [])


def judged(value: float, fault: str = "") -> Judgement:
    trace = Trace(1, [Event(0, Kind.COMPUTE, "train", 0.0, value)], "modelled", ranks_per_machine=1)
    return Judgement([Outcome("storm 1", math.nan if fault else value, fault, trace=trace)], fault)


def board(folder: Path) -> Leaderboard:
    found = Leaderboard(folder)
    found.keep_bounds("goodput", {"storm 1": 10.0})
    found.keep("goodput", "adaptive", "", "adaptive", "", judged(15.0), "2026-12-01T09:00:00+00:00")
    found.keep("goodput", "ada+1", "ada", "Hare", "", judged(12.0), "2026-12-01T10:00:00+00:00")
    found.keep("goodput", "ada+2", "ada", "Achilles", "", judged(14.0), "2026-12-01T11:00:00+00:00")
    found.keep("goodput", "grace+1", "grace", "Tortoise", "", judged(5.0, "it fails"), "2026-12-01T12:00:00+00:00")
    return found


def names(standings: list[Standing]) -> list[str]:
    return [one.row.name for one in standings]


def test_the_best_entry_of_each_author_stands_under_the_newest_name(tmp_path: Path) -> None:
    assert Leaderboard(tmp_path / "none").standings("goodput") == []
    leaderboard = board(tmp_path)
    standings = leaderboard.standings("goodput")
    assert names(standings) == ["bound", "Achilles", "adaptive"]
    assert [one.ratio for one in standings] == pytest.approx([1.0, 1.2, 1.5])
    assert leaderboard.names_of_others("goodput", "grace") == {"adaptive", "Hare", "Achilles"}
    again = leaderboard.keep("goodput", "ada+1", "ada", "Hare", "", judged(12.0), "2026-12-01T13:00:00+00:00")
    assert again.id == leaderboard.id_of("ada+1") and len(leaderboard.results("goodput")) == 4, (
        "judged again, kept once"
    )


def test_equal_scores_share_a_place(tmp_path: Path) -> None:
    leaderboard = Leaderboard(tmp_path)
    leaderboard.keep_bounds("goodput", {"storm 1": 10.0})
    for number, (author, value) in enumerate([("ada", 12.0), ("grace", 14.0), ("alan", 14.0), ("emmy", 15.0)]):
        at = f"2026-12-01T1{number}:00:00+00:00"
        leaderboard.keep("goodput", f"{author}+1", author, author.upper(), "", judged(value), at)
    assert [one.place for one in leaderboard.standings("goodput")] == [0, 1, 2, 2, 4]


def test_withdrawn_entries_are_out_of_the_standings(tmp_path: Path) -> None:
    leaderboard = board(tmp_path)
    (first,) = (one.result for one in leaderboard.standings("goodput")[1:2])
    assert first is not None
    leaderboard.withdraw("goodput", "ada", 100.0)
    assert names(leaderboard.standings("goodput")) == ["bound", "adaptive"]
    assert leaderboard.names_of_others("goodput", "grace") == {"adaptive"}, "others may have the name now"
    assert leaderboard.trace("goodput", first.id, "storm 1") is None
    assert len(leaderboard.results("goodput")) == 4, "nothing is deleted"
    later = "2026-12-01T13:00:00+00:00"
    leaderboard.keep("goodput", "ada+3", "ada", "Hare", "", judged(13.0), later, sent=101.0)
    assert names(leaderboard.standings("goodput")) == ["bound", "Hare", "adaptive"], "sent after the withdrawal"
    leaderboard.withdraw("goodput", "ada", 100.0)  # the service was killed, and does it again
    assert names(leaderboard.standings("goodput")) == ["bound", "Hare", "adaptive"]


def test_a_withdrawal_comes_through_the_queue_and_waits_for_no_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbound, today = tmp_path / "exchange" / "inbound", "2026-12-01"
    (inbound / "ada").mkdir(parents=True)
    monkeypatch.setenv(sending.EXCHANGE, str(tmp_path / "own"))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "inbound").symlink_to(inbound / "ada")  # as the learner's server sees it
    monkeypatch.setenv("USER", "ada")
    (tmp_path / "mine.py").write_text("class Policy: ...\n")
    leaderboard = Leaderboard(tmp_path / "challenges")
    leaderboard.keep_bounds("goodput", {"storm 1": 10.0})
    leaderboard.keep("goodput", "ada+0", "ada", "Hare", "", judged(12.0), f"{today}T09:00:00+00:00", sent=1.0)
    queue = GradingQueue(
        inbound, tmp_path / "graded", [assignment_of("goodput"), withdrawal_of("goodput")], tries_per_day=1
    )
    sending.send("goodput", tmp_path / "mine.py", "Hare")
    (first,) = queue.waiting(today)
    queue.finish(first, Done("ada", first.assignment, first.path.name, f"{today}T10:00:00+00:00", judged=True))
    sending.send("goodput", tmp_path / "mine.py", "Hare")
    assert queue.waiting(today) == [], "no try is left"
    sending.withdraw("goodput")
    (withdrawal,) = queue.waiting(today)
    grader = EntryGrader(leaderboard, [], ["goodput"])
    queue.finish(withdrawal, grader.grade(withdrawal))
    assert leaderboard.final.is_withdrawn("goodput", "ada", 1.0), "also if the challenge is over"
    assert names(leaderboard.standings("goodput")) == ["bound"]
    (waited,) = queue.waiting("2026-12-02")
    done = grader.grade(waited)
    assert (done.judged, done.problem) == (False, "you have withdrawn it")


@pytest.mark.slow
@pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")
def test_what_an_entry_has_told_of_hidden_instances_is_worth_nothing_when_the_challenge_is_over(tmp_path: Path) -> None:
    """The best entry of each author is judged on instances of another seed: grace's fails there, so ada leads."""
    leaderboard, race = Leaderboard(tmp_path), find("goodput").load()
    leaderboard.keep_bounds("goodput", dict(race.bounds(leaderboard.seed())))
    made_for_them = "class Policy:\n    def decide(self, state):\n        raise RuntimeError('another storm')\n"
    texts = {"ada": course_entries("goodput")["torchrun"].read_text(), "grace": made_for_them}
    for author, value in (("ada", 36_000.0), ("grace", 21_000.0)):
        outcomes = [Outcome(instance, value) for instance in leaderboard.bounds("goodput")]
        at = "2026-12-01T10:00:00+00:00"
        leaderboard.keep("goodput", f"{author}+1", author, author.upper(), texts[author], Judgement(outcomes), at)
    assert names(leaderboard.standings("goodput")) == ["bound", "GRACE", "ADA"]
    over, final = EntryGrader(leaderboard, [], [], ["goodput"]), leaderboard.final
    assert over.grade_unsent() and over.grade_unsent() and not over.grade_unsent(), "each once"
    assert final.seed() != leaderboard.seed()
    assert final.bounds("goodput") == race.bounds(final.seed())
    bound, ada = final.standings("goodput")
    assert ada.row.name == "ADA" and ada.row.values != dict.fromkeys(ada.row.values, 36_000.0)
    assert bound.row.score < ada.row.score
    (failed,) = (result for result in final.results("goodput") if result.author == "grace")
    assert "another storm" in failed.fault


def test_a_trace_is_found_by_an_id_that_does_not_say_whose_it_is(tmp_path: Path) -> None:
    leaderboard = board(tmp_path)
    first = leaderboard.standings("goodput")[1].result
    assert first is not None
    path = leaderboard.trace("goodput", first.id, "storm 1")
    # as a word: an ID has such letters, too
    assert path is not None and re.search(r"\bada\b", path.relative_to(tmp_path).as_posix()) is None
    assert "traceEvents" in json.loads(path.read_text())
    assert Leaderboard(tmp_path / "another").id_of("ada+1") != first.id, "nobody can compute it without the seed"
    for id, instance in ((first.id, "storm 2"), ("../goodput", "storm 1"), ("0" * 16, "storm 1")):
        assert leaderboard.trace("goodput", id, instance) is None
    failed = leaderboard.id_of("grace+1")
    assert leaderboard.trace("goodput", failed, "storm 1") is None, "what does not count shows nothing"
