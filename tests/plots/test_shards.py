"""The plot of shards: every sample is shown on the rank that gets it."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from labkit.plots import Picture, shards
from labkit.plots.picture import WIDTH

CELL = 0.33


def samples(picture: Picture) -> dict[str, tuple[float, float]]:
    """Where each sample is, in inches from the left and the top of its page."""
    (axes,) = picture.axes
    (left, right), (bottom, _) = axes.get_xlim(), axes.get_ylim()
    assert (right - left) * CELL <= WIDTH + 0.01 and bottom * CELL <= picture.get_size_inches()[1]
    return {text.get_text(): text.get_position() for text in axes.texts}


def test_every_sample_is_in_the_row_of_its_rank_and_the_column_of_its_step() -> None:
    grids = {"on 3 ranks": [[100, 103], [101, 104], [102, None]], "on 2 ranks": [[200, 202, 204], [201, 203]]}
    found = samples(shards(grids, 300, title="Some samples"))
    assert {"on 3 ranks", "on 2 ranks", "rank", "step"} <= set(found)
    for grid in grids.values():
        left, top = found[str(grid[0][0])]
        for rank, share in enumerate(grid):
            for step, sample in enumerate(share):
                if sample is not None:
                    assert found[str(sample)] == pytest.approx((left + step, top + rank))


def test_grids_are_side_by_side_while_there_is_room() -> None:
    wide = [list(range(100, 112))], [list(range(200, 209))], [list(range(300, 309))]
    found = samples(shards(dict(zip("abc", wide, strict=True)), 400))
    (first, top), (second, same), (third, below) = (found[str(sample)] for sample in (100, 200, 300))
    # in one line with the first there is no room for the second
    assert first == second < third and top < same == below


def test_a_step_without_a_sample_is_an_empty_cell() -> None:
    (axes,) = shards({"stopped": [[5, None, None]]}, 10).axes
    assert [patch.get_facecolor()[3] for patch in axes.patches] == [1, 0, 0]


def test_more_samples_than_a_line_has_room_for_are_all_within_the_picture() -> None:
    (axes,) = shards({"many": [list(range(40))]}, 40).axes
    assert axes.get_xlim()[1] >= 40


def test_words_say_what_the_picture_shows() -> None:
    picture = shards({"in order": [[0, 2], [1, None]]}, 3)
    assert picture.alt == "Samples of each rank: 1 grid of ranks by steps. in order: rank 0 has 0 2; rank 1 has 1 -."


def test_it_draws_with_nothing_in_it() -> None:
    image = Image.open(io.BytesIO(shards({"no samples": [[], []]}, 0).png()))
    assert image.width > 100
