"""Why a run failed, in the lab's own words: a failed rank cannot put any text into them."""

from __future__ import annotations

import signal

import pytest
from checks.course import SOLUTION

from labkit import catalogue
from labkit.checks import Submission
from labkit.checks.stopping import what_stopped
from labkit.clusters import RankError, RankResult, Run
from labkit.clusters.error_hints import NOT_WRITTEN
from labkit.clusters.rank_status import PendingOperation, RankStatus
from labkit.clusters.virtual.scheduler.errors import SCHEDULER_FAILED

pytestmark = pytest.mark.usefixtures("course")

FILE = "phase1_small/largest.py"
SECRET = "31415926"


def stopped(run: Run) -> tuple[str, str, int]:
    stop = what_stopped(run, Submission(catalogue.find("largest"), SOLUTION))
    return stop.text, stop.why, stop.line


def failed(kind: str, message: str = SECRET, file: str = FILE, line: int = 4, exit_code: int = 1) -> Run:
    error = RankError(kind, message, ((file, line, SECRET, SECRET),), SECRET, locals=((SECRET, SECRET),))
    return Run([RankResult(0, SECRET, output=SECRET), RankResult(1, error=error, exit=exit_code)])


def test_an_exception_is_named_with_its_rank_and_line() -> None:
    text, why, line = stopped(failed("NotImplementedError"))
    assert (text, line) == (f"NotImplementedError at {FILE}, line 4", 4)
    assert why == ("On rank 1 of 2. The function called is not implemented for this input, or on these ranks.")


def test_a_scheduler_that_fails_is_an_error_of_the_lab() -> None:
    submission = Submission(catalogue.find("largest"), SOLUTION)
    stop = what_stopped(Run([RankResult(0)], stopped=f"{SCHEDULER_FAILED}: {SECRET}"), submission)
    assert stop.of_the_lab
    assert not what_stopped(failed("KeyError"), submission).of_the_lab


def test_a_frozen_object_is_told_from_other_exceptions() -> None:
    text, why, _ = stopped(failed("FrozenInstanceError"))
    assert text == f"FrozenInstanceError at {FILE}, line 4"
    assert why == "On rank 1 of 2. Objects of this class are frozen: use dataclasses.replace(old, name=value) instead."


def test_a_gap_of_the_template_is_not_what_somebody_does_not_have() -> None:
    submission = Submission(catalogue.find("largest"), SOLUTION)
    gap = what_stopped(failed("NotImplementedError", NOT_WRITTEN), submission)
    assert gap.unwritten and gap.why == "On rank 1 of 2. It called a part that is not written yet."
    missing = what_stopped(failed("NotImplementedError", "all_reduce of no tensors at all"), submission)
    assert not missing.unwritten and "not written" not in missing.why


@pytest.mark.parametrize(
    "run",
    [
        failed(f"Error{SECRET}"),
        failed("ValueError", file=f"{SECRET}.py"),
        failed("ValueError", line=int(SECRET)),
        failed("ValueError", file=f"{FILE}, line 4\n{SECRET}"),
        failed("SyntaxError", f"{SECRET}"),
        failed("SyntaxError", f"'(' was never closed ({SECRET}, line {SECRET})"),
        failed("SyntaxError", f"expected an indented block after function definition on line {SECRET[:6]}"),
        failed("IndentationError", f"unexpected indent {SECRET}"),
        failed("DeadlockError", f"rank 0 waits in {SECRET}"),
        failed("SystemExit", SECRET, exit_code=int(SECRET)),
        failed("SIGKILL", SECRET, exit_code=-int(SECRET)),
        Run([RankResult(0, exit=-int(SECRET))]),
        Run(
            [RankResult(0, exit=None)],
            stopped="timeout after 20 s",
            statuses=[RankStatus(0, ((f"{SECRET}.py", int(SECRET), SECRET, SECRET),))],
        ),
        Run(
            [RankResult(0, error=RankError("DeadlockError", SECRET))],
            statuses=[
                RankStatus(
                    0, under_way=(PendingOperation("send", SECRET, SECRET, peer=1, line=SECRET, waited_for=True),)
                )
            ],
        ),
    ],
)
def test_nothing_that_a_rank_says_comes_through(run: Run) -> None:
    text, why, _ = stopped(run)
    assert SECRET not in text + why


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("def f(x)\n    pass\n", "expected ':'"),
        ("def f(x):\npass\n", "expected an indented block after function definition on line 1"),
        ("for x in y:\n\n", "expected an indented block after 'for' statement on line 1"),
        ("x = (1,\n", "'(' was never closed"),
        ("x = (1]\n", "closing parenthesis ']' does not match opening parenthesis '('"),
        ("x = 'a\n", "unterminated string literal (detected at line 1)"),
        ("if x:\n        a\n    b\n", "unindent does not match any outer indentation level"),
        ("if x:\n        a\n\tb\n", "inconsistent use of tabs and spaces in indentation"),
    ],
)
def test_pythons_own_words_about_a_module_that_it_cannot_read(module: str, words: str) -> None:
    with pytest.raises(SyntaxError) as caught:
        compile(module, FILE, "exec")
    _, why, _ = stopped(failed(type(caught.value).__name__, str(caught.value)))
    assert why == f"On rank 1 of 2. Python cannot parse the module, so none of it ran. Python says: {words}."


def test_letters_in_pythons_words_are_pythons_own() -> None:
    """A rank that has seen its inputs could spell them out in something that looks like a message of Python's."""
    _, why, _ = stopped(failed("IndentationError", "expected an indented block after the letters abc on line 1"))
    assert "abc" not in why


def test_a_signal_is_put_into_words() -> None:
    text, why, _ = stopped(Run([RankResult(0), RankResult(1, exit=-signal.SIGSEGV)]))
    assert text == "a rank that ended early"
    assert why == "Rank 1 was killed by SIGSEGV. It accessed memory that it does not own (segmentation fault)."


def test_a_time_out_says_which_ranks_were_where() -> None:
    at = ((FILE, 5, "f", ""),)
    run = Run(
        [RankResult(rank, exit=None) for rank in range(3)],
        stopped="timeout after 5 s",
        statuses=[RankStatus(0, at), RankStatus(1, at), RankStatus(2)],
    )
    text, why, line = stopped(run)
    assert (text, line) == (f"timeout at {FILE}, line 5", 5)
    assert why == "When time ran out, ranks 0-1 were at line 5; rank 2 had not returned."


def test_a_deadlock_says_who_waits_for_whom() -> None:
    statuses = [
        RankStatus(
            r, under_way=(PendingOperation("send", "send", peer=1 - r, line=f"{FILE}, line 6", waited_for=True),)
        )
        for r in range(2)
    ]
    ranks = [RankResult(r, error=RankError("DeadlockError", SECRET, ((FILE, 6, "f", ""),)), exit=1) for r in range(2)]
    text, why, line = stopped(Run(ranks, statuses=statuses))
    assert (text, line) == (f"DeadlockError at {FILE}, line 6", 6)
    assert "rank 0 waits in send for rank 1 to receive (line 6)" in why
    assert "Cycle: 0 → 1 → 0. Each of them sends first" in why


OTHER = "phase1_small/earlier.py"


def with_other() -> Submission:
    return Submission(catalogue.find("largest"), SOLUTION, {"phase1_small/earlier": SOLUTION})


def test_a_wait_in_another_module_of_the_learners_is_said_with_its_file() -> None:
    """Without a file, a line is one of the exercise's own module."""
    statuses = [
        RankStatus(
            rank,
            under_way=(PendingOperation("send", "send", peer=1 - rank, line=f"{file}, line 6", waited_for=True),),
        )
        for rank, file in enumerate((FILE, OTHER))
    ]
    ranks = [RankResult(r, error=RankError("DeadlockError", SECRET, ((OTHER, 6, "f", ""),)), exit=1) for r in range(2)]
    stop = what_stopped(Run(ranks, statuses=statuses), with_other())
    assert "rank 0 waits in send for rank 1 to receive (line 6)" in stop.why
    assert f"rank 1 waits in send for rank 0 to receive ({OTHER}, line 6)" in stop.why
    assert (stop.text, stop.line, stop.todo.number) == (f"DeadlockError at {OTHER}, line 6", 0, 0)


def test_a_time_out_in_another_module_is_said_with_its_file() -> None:
    statuses = [RankStatus(rank, ((file, 5, "f", ""),)) for rank, file in enumerate((FILE, OTHER))]
    run = Run([RankResult(rank, exit=None) for rank in range(2)], stopped="timeout after 5 s", statuses=statuses)
    assert (
        what_stopped(run, with_other()).why
        == f"When time ran out, rank 0 was at line 5; rank 1 was at {OTHER}, line 5."
    )


def test_a_full_folder_says_of_what_and_nothing_that_a_rank_could_have_written() -> None:
    full = f"[Errno 28] No space left on device: '{SECRET}' (/{SECRET} is full: the 65,536 files and folders"
    _, why, _ = stopped(failed("OSError", f"{full} that it may hold are there)"))
    assert why == "On rank 1 of 2. A folder is full: the 65,536 files and folders that it may hold are there."
    _, why, _ = stopped(failed("OSError", f"[Errno 27] {SECRET} (a file may hold 256 MiB)"))
    assert why == "On rank 1 of 2. A file may hold 256 MiB."
    _, why, _ = stopped(failed("OSError", f"[Errno 28] {SECRET}"))
    assert SECRET not in why and "is not shown" in why
