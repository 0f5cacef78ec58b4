"""Entries of challenges as the classroom reads them, and the standings that follow from what is kept."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path

import pytest

from autograder.classroom.challenges.entries import course_entries, received
from autograder.classroom.challenges.leaderboard import Judgement, Leaderboard, Standing
from autograder.intake.limits import EntryRefused
from labkit.challenges.challenge import Outcome
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
    with pytest.raises(EntryRefused, match="somebody else has it, or it is a user's name"):
        received(sent(tmp_path / "one", name), ["ada"], ["Hare", *course_entries("all_reduce")])


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
        binary: "entry.py is not UTF-8 text",
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
