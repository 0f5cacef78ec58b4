"""The grid of rounds shows the schedule; schedules reach all ranks in the right number of rounds."""

from __future__ import annotations

import pytest

from labkit.plots import doubling_steps, exchanges, tree_steps
from labkit.plots.collectives.exchanges import held


@pytest.mark.parametrize("n", range(1, 17))
def test_schedules_bring_everything_to_everybody(n: int) -> None:
    depth, whole = (n - 1).bit_length(), [frozenset(range(n))] * n
    assert len(tree_steps(n)) == 2 * depth
    assert held(n, tree_steps(n), range(n))[-1] == whole
    assert held(n, tree_steps(n), range(n))[depth][0] == whole[0]
    core = 1 << (n.bit_length() - 1)
    assert len(doubling_steps(n)) == core.bit_length() - 1 + 2 * (n != core)
    assert held(n, doubling_steps(n), range(n))[-1] == whole


def test_the_picture_says_who_holds_what() -> None:
    picture = exchanges(8, tree_steps(8), 2)
    axes = picture.axes[0]
    words = [text.get_text() for text in axes.texts]
    assert {"0-1", "0-3", "4-7", "rank 7", "round 6"} <= set(words)
    assert axes.get_title(loc="left") == "After round 2 of 6 · 2 messages in it"
    assert picture.alt.startswith(
        "Messages among 8 ranks in 6 rounds. After 2 of them 0 of 8 ranks hold the data of all."
    )
    assert picture.alt.endswith(" In round 2: 2 to 0, 6 to 4.")
    assert len(axes.patches) == 7 * 8 + 4 + 2  # boxes, messages of both rounds


def test_a_broadcast_begins_with_one_holder() -> None:
    picture = exchanges(4, tree_steps(4)[2:], 1, holders={0})
    assert "1 of 4 ranks" not in picture.alt and "2 of 4 ranks hold" in picture.alt


def test_what_no_picture_holds_is_refused() -> None:
    for world_size, steps, round in ((17, [], 0), (0, [], 0), (4, tree_steps(4), 5), (4, tree_steps(4), -1)):
        with pytest.raises(ValueError, match="must be"):
            exchanges(world_size, steps, round)
    with pytest.raises(ValueError, match="at most 16 rounds"):
        exchanges(16, [[(0, 1)]] * 17, 0)
