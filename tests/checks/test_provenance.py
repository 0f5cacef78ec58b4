"""Sums of powers of ten: failures name the ranks whose part is missing, or there too often."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from labkit.checks import CheckFailed, expect


def sums(*values: float) -> Tensor:
    return torch.tensor(values)


def parts(seen: list[Tensor], wanted: list[Tensor], chunks: int | None = None, ranks: int = 4) -> list[str]:
    with pytest.raises(CheckFailed) as caught:
        expect(seen, "sum", chunks=chunks, ranks=ranks).equals(wanted)
    return caught.value.parts.splitlines()


def test_a_missing_part_is_named_by_its_rank_and_chunk() -> None:
    whole = sums(*[1111.0] * 4)
    assert parts([whole, sums(1111, 1111, 1011, 1011), sums(1111, 1, 0, 1113)], [whole] * 3, chunks=4) == [
        "rank 1: chunks 2-3 without rank 2's part (1011)",
        "rank 2: chunk 1 with nothing but rank 0's part (1); chunk 2 with no part of any rank (0); "
        "chunk 3 with rank 0's part 3 times (1113)",
    ]


def test_ranks_with_the_same_sums_share_a_line() -> None:
    assert parts([sums(1011, 1011)] * 2, [sums(1111, 1111)] * 2) == ["ranks 0-1: without rank 2's part (1011)"]


def test_a_part_of_another_group_does_not_belong_there() -> None:
    assert parts([sums(111.0)], [sums(101.0)]) == ["rank 0: with rank 1's part, which does not belong there (111)"]
    assert parts([sums(2222.0)], [sums(1010.0)]) == [
        "rank 0: with the parts of ranks 0, 2, which do not belong there, and the parts of ranks 1, 3 twice (2222)"
    ]


def test_the_parts_are_counted_for_a_picture() -> None:
    whole = sums(*[111.0] * 3)
    with pytest.raises(CheckFailed) as caught:
        expect([whole, sums(111, 0.5, 121), sums(101, 101, 101)], "sum", chunks=3, ranks=3).equals([whole] * 3)
    picture, every = caught.value.picture, (1, 1, 1)
    assert picture is not None
    assert picture.parts == {
        1: [(every, every), (None, every), ((1, 2, 1), every)],
        2: [((1, 0, 1), every)] * 3,
    }


def test_sums_that_are_not_cut_are_counted_too() -> None:
    with pytest.raises(CheckFailed) as caught:
        expect([None, sums(101.0, 101.0)], "sum", ranks=3).equals([None, sums(111.0, 111.0)])
    picture = caught.value.picture
    assert picture is not None
    assert (picture.wrong, picture.parts) == ([[False], [True]], {1: [((1, 0, 1), (1, 1, 1))]})


def test_chunks_without_elements_are_left_out() -> None:
    with pytest.raises(CheckFailed) as caught:
        expect([sums(11.0, 11.0, 10.0)], "sum", chunks=4, ranks=2).equals([sums(11.0, 11.0, 11.0)])
    assert caught.value.picture is not None
    assert caught.value.picture.parts == {0: [((1, 1), (1, 1))] * 2 + [((0, 1), (1, 1))]}


@pytest.mark.parametrize("seen", [0.5, -1.0, float("nan"), float("inf"), 12345678.0])
def test_a_number_that_is_no_such_sum_is_not_read_as_one(seen: float) -> None:
    with pytest.raises(CheckFailed) as caught:
        expect([sums(seen)], "sum", ranks=4).equals([sums(1111.0)])
    assert (caught.value.parts, caught.value.picture) == ("", None)


def test_a_complex_number_is_no_such_sum() -> None:
    assert parts([torch.tensor([1j])], [sums(1111.0)]) == []
