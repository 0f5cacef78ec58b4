"""Reports in a terminal, in a notebook, and as data."""

from __future__ import annotations

import json

from labkit.checks import CheckResult, Report, WrongChunks
from labkit.checks.provenance import Parts
from labkit.clusters import RankResult, Run

HOSTILE = "<script>alert('1')</script>"


def report() -> Report:
    run = Run([RankResult(0, output="step 0\n"), RankResult(1, output="step 0\n")])
    return Report(
        "phase3_multi_node/ring_allreduce",
        [
            CheckResult("every rank ends with the sum", points=3, earned=3),
            CheckResult(
                f"sends only what a ring must {HOSTILE}",
                points=2.5,
                earned=0,
                expected="6144 bytes",
                seen=f"8192\n{HOSTILE}",
                look_at="what leaves",
                stopped="timeout",
                run=run,
                picture=WrongChunks([[False, True], [False, False]]),
            ),
            CheckResult("time", points=4, earned=0, skipped="no clock here"),
        ],
        seed=42,
        title="your module",
    )


def test_text_is_aligned_and_says_all() -> None:
    assert report().text().splitlines() == [
        "ok   3/3   every rank ends with the sum",
        f"FAIL 0/2.5 sends only what a ring must {HOSTILE}",
        "           expected  6144 bytes",
        "           seen      8192",
        f"                     {HOSTILE}",
        "           look at   what leaves",
        "           printed   step 0",
        "           chunk     0  1",
        "           rank   0  .  x",
        "           rank   1  .  .",
        "           x: wrong",
        "skip       time",
        "           no clock here",
        "ring_allreduce: 3 of 5.5 points (your module)",
        "to repeat with the same inputs: --seed 42",
    ]


def test_what_is_not_written_yet_has_not_failed() -> None:
    place = "phase3_multi_node/ring_allreduce.py, line 12"
    seen = "NotImplementedError on every rank\n  and where it was called"
    stopped = f"NotImplementedError at {place}"
    result = CheckResult("the sum", 3, 0, "every rank to return", seen, stopped=stopped, unwritten=True)
    assert result.text().splitlines() == ["TODO 0/3   the sum", f"           to write  {place}"]
    shown = Report("phase3_multi_node/ring_allreduce", [result], seed=0)._repr_html_()
    assert "to do" in shown and place in shown and "failed" not in shown


def test_what_could_not_be_judged_counts_for_nothing() -> None:
    only_skipped = Report("phase1_x/y", [CheckResult("time", points=4, earned=0, skipped="no clock here")], seed=1)
    assert (only_skipped.points, only_skipped.earned, only_skipped.passed) == (0, 0, True)


def test_html_escapes_what_learners_wrote() -> None:
    html = report()._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    for word in ("passed", "failed", "skipped", "6144 bytes", "3 of 5.5 points"):
        assert word in html


def test_long_output_is_cut() -> None:
    result = CheckResult("x", 1, 0, seen="\n".join(f"line {n}" for n in range(1000)))
    assert len(result.text().splitlines()) < 20
    assert "more lines" in result.text()
    assert len(CheckResult("x", 1, 0, seen="a" * 10**6).text()) < 10_000


def test_json_there_and_back() -> None:
    plain = json.loads(json.dumps(report().to_json()))
    assert Report.from_json(plain).text() == "\n".join(
        line
        for line in report().text().splitlines()
        if not line.strip().startswith(("printed", "chunk", "rank ", "x:"))
    )


def test_hidden_checks_tell_where_to_look_and_no_values() -> None:
    text = report().without_details().text()
    assert "what leaves" in text
    assert "timeout" in text
    for secret in ("6144", "8192", "step 0", "x: wrong"):
        assert secret not in text


def test_counted_parts_leave_neither_a_hidden_check_nor_the_data_of_a_report() -> None:
    counted = WrongChunks([[True]], {0: [Parts((1, 0), (1, 1))]})
    failed = CheckResult("the sum", 3, 0, "11", "1", parts="rank 0: without rank 1's part (1)", picture=counted)
    assert "chunk" not in failed.text()  # one chunk: the words say it all
    shown = Report("phase3_multi_node/ring_allreduce", [failed], seed=0)
    (hidden,) = shown.without_details().results
    assert (hidden.parts, hidden.picture) == ("", None)
    (result,) = Report.from_json(json.loads(json.dumps(shown.to_json()))).results
    assert result.picture is None


def test_what_was_judged_counts_for_what_was_left_out() -> None:
    found = report()
    assert (found.earned, found.points, found.all_points) == (3, 5.5, 9.5)
    assert found.marks == 5.18
    assert found.left_out == "ring_allreduce: 4 of 9.5 points are left out: no clock here"
    whole = Report("ring_allreduce", found.results[:2], seed=0)
    assert (whole.marks, whole.left_out) == (3, "")
