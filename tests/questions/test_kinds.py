"""How attempts at a number, a choice and a line of code are judged."""

from __future__ import annotations

import pytest

from labkit.questions import Choice, Line, Number, Verdict

RIGHT, WRONG, UNREAD = Verdict.RIGHT, Verdict.WRONG, Verdict.UNREAD
ROUNDS = Number(
    name="rounds_of_four",
    text="How many rounds on 4 ranks?",
    answer=lambda size: 2 * (size - 1),
    solution="2 * 3",
    unit="rounds",
    near={"3": "the sum has to come back.", "answer + 2": "a rank sends nothing to itself."},
    otherwise="Count the messages of rank 0.",
    why="The run had {answer:.0f}.",
)
SIDE = Choice(
    name="side", text="Which?", options={"left": "look again.", "right": "", "both": "one of them."}, why="As drawn."
)
LINE = Line(
    name="right_neighbour",
    text="The right neighbour of `rank`?",
    answer=lambda rank, size: (rank + 1) % size,
    solution="(rank + 1) % size",
    cases=lambda draw: ({"rank": rank, "size": 4} for rank in (draw.randrange(3), 3)),
    near={"rank + 1": "the ring is closed.", "(rank - 1) % size": "that is the left one."},
    why="Modulo closes the ring.",
)


@pytest.mark.parametrize(
    ("given", "verdict", "text"),
    [
        ("6", RIGHT, "**Right**: 6 rounds. The run had 6."),
        ("2 * (size - 1) rounds", RIGHT, "**Right**: 6 rounds. The run had 6."),
        ("3", WRONG, "**Not yet**: 3 rounds. The sum has to come back."),
        ("8", WRONG, "**Not yet**: 8 rounds. A rank sends nothing to itself."),
        ("7", WRONG, "**Not yet**: 7 rounds. Count the messages of rank 0."),
        ("x", UNREAD, "That is not a number: x. No number is called x."),
    ],
)
def test_a_number_is_judged_by_what_the_notebook_has(given: str, verdict: Verdict, text: str) -> None:
    reply = ROUNDS.judge(given, {"size": 4})
    assert (reply.verdict, reply.text) == (verdict, text)


def test_a_tolerance_is_relative() -> None:
    loss = Number(name="loss", text="?", answer=lambda: 200.0, solution="200", tolerance=0.01, why="")
    assert [loss.judge(given, {}).verdict for given in ("198.1", "202", "197.9")] == [RIGHT, RIGHT, WRONG]


def test_cells_that_have_not_run_are_named() -> None:
    reply = ROUNDS.judge("6", {})
    assert reply.verdict is Verdict.UNREADY
    assert reply.text == "This needs `size` from an earlier cell: run the cells above, then try again."
    assert ROUNDS.reveal({}).verdict is Verdict.UNREADY


def test_an_error_in_the_learners_own_code_is_reported_without_a_traceback() -> None:
    def answer() -> float:
        raise NotImplementedError("TODO 2\nmore")

    reply = Number(name="own", text="?", answer=answer, solution="1", why="").judge("1", {})
    assert reply.verdict is Verdict.UNREADY
    assert "ends in `NotImplementedError: TODO 2`: complete the exercise cell" in reply.text


def test_a_prediction_is_noted_until_the_notebook_shows_it() -> None:
    question = Number(
        name="peak",
        text="?",
        answer=lambda peak: peak,
        solution="5",
        unit="GB",
        shown_by="the picture below",
        why="So.",
    )
    reply = question.judge("4", {})
    assert (reply.verdict, reply.text) == (Verdict.NOTED, "**Noted**: 4 GB. It appears in the picture below.")
    assert question.judge("four", {}).verdict is UNREAD
    assert question.judge("4", {"peak": 5.0}).verdict is WRONG
    assert question.judge("5", {"peak": 5.0}).verdict is RIGHT


@pytest.mark.parametrize(
    ("given", "verdict", "text"),
    [
        ("right", RIGHT, "**Right**: right. As drawn."),
        ("2", RIGHT, "**Right**: right. As drawn."),
        ("1", WRONG, "**Not yet**: look again."),
        ("4", UNREAD, "Choose one of 1 to 3."),
        ("", UNREAD, "Choose one of 1 to 3."),
    ],
)
def test_a_choice_is_given_by_its_text_or_number(given: str, verdict: Verdict, text: str) -> None:
    reply = SIDE.judge(given, {})
    assert (reply.verdict, reply.text) == (verdict, text)


def test_a_choice_has_one_right_option() -> None:
    with pytest.raises(ValueError, match="one right option"):
        Choice(name="none", text="?", options={"a": "no", "b": "no"}, why="")


@pytest.mark.parametrize(
    ("given", "verdict", "text"),
    [
        ("(1 + rank) % size", RIGHT, "Modulo closes the ring."),
        ("0 if rank == last else rank + 1", RIGHT, "Modulo closes the ring."),
        ("rank + 1", WRONG, "the ring is closed."),
        ("(rank + 3) % 4", WRONG, "that is the left one."),
        ("rank + 5", WRONG, "with rank = "),
        ("'a'", WRONG, "it gives 'a'"),
        ("rank +", UNREAD, "not an expression in Python: invalid syntax"),
        ("2N + 1", UNREAD, "invalid decimal literal; write 2 * N for 2N."),
        ("ranks + 1", UNREAD, "ends in `NameError: name 'ranks' is not defined`"),
        ("exit()", UNREAD, "your line ends in"),
    ],
)
def test_a_line_is_evaluated_in_drawn_cases_with_the_notebooks_names(given: str, verdict: Verdict, text: str) -> None:
    reply = LINE.judge(given, {"last": 3, "exit": exit})
    assert reply.verdict is verdict and text in reply.text


def test_a_wrong_line_does_not_learn_the_value_that_is_wanted() -> None:
    reply = LINE.judge("-17", {})
    assert "it gives -17" in reply.text
    assert not any(f" {value}." in reply.text for value in range(4))


def test_the_answer_can_be_revealed() -> None:
    reply = ROUNDS.reveal({"size": 4})
    assert reply.verdict is Verdict.SEEN
    assert reply.text == "The answer is 6 rounds, from `2 * 3`. The run had 6."
    assert SIDE.reveal({}).text == "The answer is: right. As drawn."
    assert LINE.reveal({}).text == "The answer is `(rank + 1) % size`. Modulo closes the ring."
