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


@pytest.mark.parametrize("seen", [0.5, -1.0, float("nan"), float("inf"), 12345678.0])
def test_a_number_that_is_no_such_sum_is_not_read_as_one(seen: float) -> None:
    assert parts([sums(seen)], [sums(1111.0)]) == []
