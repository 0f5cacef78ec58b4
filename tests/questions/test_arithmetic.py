"""What counts as a number when a learner types it."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.questions.arithmetic import NotANumber, number


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("2.35", 2.35),
        (" 1_000 ", 1000),
        ("1e6", 1e6),
        ("2 * 16 * 4", 128),
        ("-(3 - 5) ** 2", -4),
        ("2 \u00d7 8 \u2212 1", 15),
        ("7 // 2 + 7 % 2", 4),
        ("math.ceil(9 * talking / computing)", 14),
        ("max(3, sqrt(16))", 4),
        ("12 MB", 12),
    ],
)
def test_numbers_and_arithmetic_are_read(line: str, value: float) -> None:
    assert number(line, {"talking": 3.0, "computing": np.float64(2)}, unit="MB") == value


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("3,5", "that is not a number: 3,5. For three and a half write 3.5"),
        ("1,000", "1_000"),
        ("2^10", "Write ** for a power"),
        ("", "type a number"),
        ("about ten", "that is not a number: about ten"),
        ("1 / 0", "divides by zero"),
        ("9**9**9**9", "that is not a number"),
        ("10**1000 * 1e400", "that is not a number"),
        ("(-8) ** 0.5", "that is not a number"),
        ("True", "that is not a number"),
        ("'a' * 10**9", "that is not a number"),
        ("nobody", "No number is called nobody"),
        ("model", "No number is called model"),
        ("__import__('os').getpid()", "that is not a number"),
        ("open('x', 'w')", "Known functions are abs, ceil"),
        ("(" * 150 + "1" + ")" * 150, "too long"),
    ],
)
def test_anything_else_is_refused_in_words(line: str, words: str) -> None:
    with pytest.raises(NotANumber) as refusal:
        number(line, {"model": object()})
    assert words in str(refusal.value)


def test_another_unit_is_answered_by_the_one_that_is_asked_for() -> None:
    for line in ("125 kB", "9.6kB", "25 GB/s"):
        with pytest.raises(NotANumber, match=r"The answer is in bytes: type the number alone$"):
            number(line, unit="bytes")
    with pytest.raises(NotANumber, match=r"No number is called model$"):
        number("2 * model", unit="bytes")
