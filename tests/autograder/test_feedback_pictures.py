"""Plots of a submission's own run: their content, and that they reveal no size, no time and no text of a rank."""

from __future__ import annotations

from xml.etree import ElementTree

from autograder.feedback.pictures import _COLOUR, pictures
from labkit.checks import CheckResult, ProcessRun, Report
from labkit.clusters import RankResult, Run
from labkit.clusters.rank_status import PendingOperation, RankStatus
from labkit.plots import palette
from labkit.trace import Event, Kind, Trace

SECRET = "31415926"


def ring(ranks: int = 4, nbytes: int = 100, second: float = 1e-3, said: str = "isend") -> Trace:
    """Each rank sends to its right neighbour, then computes."""
    events = []
    for rank in range(ranks):
        right, left = (rank + 1) % ranks, (rank - 1) % ranks
        events += [
            Event(rank, Kind.SEND, said, 0.0, second, nbytes, right, "0", 0, said),
            Event(rank, Kind.RECEIVE, said, 0.0, second, nbytes, left, "0", 0, said),
            Event(rank, Kind.COMPUTE, said, second, 3 * second, line=said),
        ]
    return Trace(ranks, sorted(events, key=lambda event: event.start), "modelled")


def report(*results: tuple[float, Trace]) -> Report:
    checks = [
        CheckResult(f"check {number}", 1, earned, run=Run([RankResult(0)], trace))
        for number, (earned, trace) in enumerate(results)
    ]
    return Report("phase3_x/ring", checks, seed=1)


def test_a_timeline_and_the_traffic_with_words_for_those_who_do_not_see_them() -> None:
    timeline, traffic = pictures(report((1, ring())))
    drawn, matrix = ElementTree.fromstring(timeline.svg), ElementTree.fromstring(traffic.svg)
    said = drawn.attrib["aria-label"]
    assert "4 ranks, 4 messages." in said and "67% computing, 33% sending or receiving, 0% waiting" in said
    assert "Every message goes to a neighbour in the ring. rank 0: 1 to rank 1" in matrix.attrib["aria-label"]
    assert drawn.attrib["role"] == matrix.attrib["role"] == "img"
    shown = " ".join(drawn.itertext())
    assert "rank 3" in shown and "row 3: receive" in shown and "isend" in shown
    assert "check 0" in timeline.caption and "passed" in timeline.caption


def test_sizes_and_times_leave_no_mark() -> None:
    assert pictures(report((1, ring()))) == pictures(report((1, ring(nbytes=77777, second=2.0))))


def test_no_text_that_a_rank_said_is_in_them() -> None:
    drawn = pictures(report((0, ring(said=f"<script>{SECRET}"))))
    assert drawn
    assert not any(SECRET in picture.svg or "script" in picture.svg for picture in drawn)


def test_a_failed_run_is_drawn_before_one_that_passed() -> None:
    drawn = pictures(report((1, ring(8)), (0, ring(3)), (0, ring(5))))
    assert "check 2” failed" in drawn[0].caption


def test_a_deadlock_shows_who_waits_for_whom() -> None:
    waits = [
        RankStatus(r, under_way=(PendingOperation("send", SECRET, peer=1 - r, line=SECRET, waited_for=True),))
        for r in range(2)
    ]
    failed = CheckResult("check", 1, 0, run=Run([RankResult(0)], Trace(2), statuses=waits))
    (drawn,) = pictures(Report("phase3_x/ring", [failed], seed=1))
    assert "waits for rank 1 to receive" in drawn.svg and "waits for rank 0 to receive" in drawn.svg
    assert "At the end rank 0 waits for rank 1 to receive." in drawn.svg
    assert SECRET not in drawn.svg


def test_what_shows_nothing_is_not_drawn() -> None:
    assert pictures(report((0, Trace(2)))) == ()
    assert pictures(report((1, ring(100)))) == ()


def test_what_real_processes_say_of_themselves_is_not_drawn() -> None:
    failed = CheckResult("check", 1, 0, run=ProcessRun([RankResult(0)], ring()))
    assert pictures(Report("phase3_x/ring", [failed], seed=1)) == ()


def test_colours_mean_what_they_mean_in_notebooks() -> None:
    assert _COLOUR == palette.KIND
