"""How values returned to a hidden check are shown to learners: nothing that could contain the inputs."""

from __future__ import annotations

import pytest
import torch

from labkit.checks import CheckFailed, expect
from labkit.checks.brief import brief
from labkit.transport.wire import Fields, Opaque

SECRET = "3141592653"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (torch.zeros(3, 4), "float32 of shape (3, 4)"),
        (torch.zeros(1, 1, 1, 2, 3, 0), "float32 of 6 dimensions"),
        ([2, 2, 2], "[2, 2, 2]"),
        ({1, 3}, "1, 3"),
        ([{1, 3}, {0}, set()], "[{1, 3}, {0}, {}]"),
        (set(), "nothing"),
        (None, "None"),
        (True, "True"),
        (0.123456789, "0.123457"),
        (10**4000, "a number with more than 12 digits"),
        (list(range(100)), "[0, 1, 2, 3, 4, 5, 6, 7, ...]"),
        (["all_reduce", "ValueError"], "['all_reduce', 'ValueError']"),
        (f"the inputs are {SECRET}", "a string"),
        ([f"x{SECRET}"], "[a string]"),
        ("", "an empty string"),
        ({SECRET: SECRET}, "a dict of length 1"),
        ({SECRET}, "a string"),
        (SECRET.encode(), "an object that is neither a plain tensor nor a number"),
        (Opaque(f"Type{SECRET}", SECRET), "an object that is neither a plain tensor nor a number"),
        (Fields(f"Type{SECRET}", {"x": SECRET}), "an object that is neither a plain tensor nor a number"),
        (complex(int(SECRET), 1), "an object that is neither a plain tensor nor a number"),
    ],
)  # fmt: skip
def test_values(value: object, shown: str) -> None:
    assert brief(value) == shown


def test_nothing_makes_it_long() -> None:
    value: object = [10**11] * 8
    for _ in range(50):
        value = [value] * 8
    assert len(brief(value)) <= 200
    assert len(brief([[10**11] * 8] * 8)) <= 200


@pytest.mark.parametrize("value", [f"inputs {SECRET}", [f"inputs {SECRET}"], Opaque("T", SECRET), {SECRET: 1}])
@pytest.mark.parametrize("expected", [torch.zeros(3), [torch.zeros(3)], 5, "text", [1, 2]])
def test_a_failure_tells_learners_no_text_of_their_own(value: object, expected: object) -> None:
    with pytest.raises(CheckFailed) as failure:
        expect(value).equals(expected)
    assert failure.value.told
    assert SECRET not in failure.value.told
