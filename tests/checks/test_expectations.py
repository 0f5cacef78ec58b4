"""What a learner sees when a value is not what a check expects."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.checks import CheckFailed, expect
from labkit.clusters import Opaque


def failure(judge: Any, *arguments: Any, **options: Any) -> CheckFailed:
    with pytest.raises(CheckFailed) as caught:
        judge(*arguments, **options)
    return caught.value


def test_numbers() -> None:
    expect(14336).close_to(2 * 7 / 8 * 8192)
    expect(3).at_most(3)
    expect(3.0).at_least(2)
    found = failure(expect(57344, "bytes sent by rank 0", look_at="how much leaves").equals, 14336)
    assert (found.expected, found.seen, found.look_at) == ("bytes sent by rank 0: 14336", "57344", "how much leaves")
    assert failure(expect(0.01, "seconds").at_most, 0.004).expected == "seconds: at most 0.004"
    failure(expect(None).at_most, 1)
    failure(expect(float("nan")).close_to, 1.0)
    failure(expect(float("nan")).at_most, 1.0)
    failure(expect(True).at_most, 1)


def test_one_of() -> None:
    expect({1}).is_one_of({1}, {7})
    found = failure(expect({1, 2}, "sends to").is_one_of, {1}, {7})
    assert (found.expected, found.seen) == ("sends to: 1 or 7", "1, 2")
    # equal in Python, but not what was asked for
    failure(expect(True).is_one_of, 1)
    failure(expect(1.0).equals, 1)


@pytest.mark.parametrize(
    "seen", [None, 3, "10", Opaque("Thing", "a thing"), torch.ones(2), torch.ones(3, dtype=torch.int64)]
)
def test_not_even_a_tensor_of_the_right_kind(seen: object) -> None:
    found = failure(expect(seen).equals, torch.ones(3))
    assert found.expected == "float32 of shape (3,)"


def test_a_wrong_element_is_named() -> None:
    found = failure(expect(torch.tensor([1.0, 2.0, 5.0])).equals, torch.tensor([1.0, 2.0, 3.0]))
    assert (found.expected, found.seen) == ("3 at element 2 of 3", "5 there")


def test_rounding_is_close_and_more_is_not() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        one = torch.ones(4, dtype=dtype)
        expect(one + 4 * torch.finfo(dtype).eps).close_to(one)
        failure(expect(one + 64 * torch.finfo(dtype).eps).close_to, one)
    expect(torch.tensor([1.0, 1e-9])).close_to(torch.tensor([1.0, 0.0]))
    expect(torch.tensor([1.02])).close_to(torch.tensor([1.0]), rel=0.05)
    failure(expect(torch.tensor([float("nan")])).close_to, torch.tensor([1.0]))
    failure(expect(torch.tensor([2])).close_to, torch.tensor([1]))
    expect(torch.empty(0)).close_to(torch.empty(0))


def test_ranks_are_compared_one_by_one_and_wrong_chunks_are_marked() -> None:
    right = [torch.arange(5.0)] * 3
    expect(right).equals([torch.arange(5.0)] * 3)
    seen = [torch.arange(5.0), torch.tensor([0.0, 1.0, 9.0, 3.0, 4.0]), None]
    found = failure(expect(seen, "sum", chunks=3).equals, right)
    assert found.expected == "sum: on rank 1: 2 at element 2 of 5"
    assert found.seen == "9 there (2 of 3 ranks are wrong: 1-2)"
    # chunks of two elements, the last shorter; a non-tensor is wrong in all of them
    assert found.picture is not None
    assert found.picture.wrong == [[False] * 3, [False, True, False], [True] * 3]


def test_a_rank_that_made_no_call_is_not_compared() -> None:
    expect([torch.ones(2), None]).equals([torch.ones(2), None])


def test_missing_ranks() -> None:
    assert failure(expect([torch.ones(2)]).equals, [torch.ones(2)] * 2).seen == "1 values"
    failure(expect(None).equals, [torch.ones(2)] * 2)


def test_what_does_not_hold_is_said_in_words() -> None:
    expect(True, "the links are busy").holds("they are idle")
    for value in (False, 1, "True", None):
        with pytest.raises(CheckFailed) as caught:
            expect(value, "the links are busy").holds("they are idle")
        assert (caught.value.expected, caught.value.seen) == ("the links are busy", "they are idle")


def test_a_number_with_a_unit_is_shown_for_people() -> None:
    with pytest.raises(CheckFailed) as caught:
        expect(83_245_800, "peak memory", unit="bytes").at_most(4.16229e7)
    assert caught.value.expected == "peak memory: at most 41.6 MB (41,622,900 bytes)"
    assert caught.value.seen == caught.value.told == "83.2 MB (83,245,800 bytes)"
    with pytest.raises(CheckFailed) as caught:
        expect(8192, "sent", unit="bytes").equals(6144)
    assert (caught.value.expected, caught.value.seen) == ("sent: 6144 bytes", "8192 bytes")
    with pytest.raises(CheckFailed) as caught:
        expect(0.00125, "a round", unit="seconds").at_most(0.001)
    assert (caught.value.expected, caught.value.seen) == ("a round: at most 1 ms", "1.25 ms")
