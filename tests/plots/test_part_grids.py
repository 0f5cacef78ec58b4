"""Pictures of whose parts are in a sum: grids, numbers, words."""

from __future__ import annotations

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from labkit.plots import palette, part_grids

EVERY = (1, 1, 1)


def cells(axes: Axes) -> list[str]:
    """Rows of the grid, as numbers."""
    placed = {text.get_position(): text.get_text() for text in axes.texts}
    columns, rows = len(axes.get_xticks()), len(axes.get_yticks())
    return [" ".join(placed.get((column, row), ".") for column in range(columns)) for row in range(rows)]


def headings(axes: Axes) -> list[str]:
    return [axes.get_title(loc="left"), axes.get_xlabel(), *(label.get_text() for label in axes.get_xticklabels())]


def test_a_grid_has_a_row_for_each_part_and_a_column_for_each_chunk() -> None:
    right = (EVERY, EVERY)
    twice = [right, ((1, 0, 1), EVERY), ((1, 1, 2), EVERY)]
    picture = part_grids({0: twice, 1: [(None, EVERY), right, right], 2: twice}, "ranks 0, 2: x\nrank 1: y", "the sum")
    first, second = picture.axes
    assert cells(first) == ["1 1 1", "1 0 1", "1 1 2"] and cells(second) == ["? 1 1"] * 3
    assert headings(first) == ["on ranks 0, 2", "chunk", "0", "1", "2"]
    assert headings(second)[0] == "on rank 1"
    assert picture.get_suptitle() == "Whose part is in which chunk · the sum"
    assert picture.alt == "Grid of whose part is in which chunk. Ranks 0, 2: x; rank 1: y."
    legend = [text.get_text() for text in picture.legends[0].get_texts()]
    assert legend == ["0: missing", "1: there", "2 or more: too often", "?: no sum of these parts"]


def test_a_missing_part_is_an_empty_cell_and_one_too_many_is_a_full_one() -> None:
    (axes,) = part_grids({3: [((0, 1, 3), EVERY)]}, "x").axes
    drawn = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert [to_hex(patch.get_facecolor()).upper() for patch in drawn] == ["#FFFFFF", palette.RIGHT, palette.WRONG]
    assert to_hex(drawn[0].get_edgecolor()).upper() == palette.WRONG


def test_results_that_are_not_cut_share_a_grid() -> None:
    wanted = (1, 0, 1)
    picture = part_grids({0: [((1, 2, 0), wanted)], 2: [(wanted, wanted)]}, "x")
    (axes,) = picture.axes
    assert cells(axes) == ["1 1", "+2 .", "0 1"]
    assert headings(axes) == ["", "result of rank", "0", "2"]
    assert picture.alt.startswith("Grid of whose part is in which result. ")
    assert "+: does not belong there" in [text.get_text() for text in picture.legends[0].get_texts()]


@pytest.mark.parametrize("n", [2, 5, 8])
def test_grids_fit_into_a_cell_of_the_notebook(n: int) -> None:
    every = (1,) * n
    different = {rank: [((0,) * (c == rank) + every[c == rank :], every) for c in range(n)] for rank in range(n)}
    picture = part_grids(different, "x", "a title of a check that is as long as titles of checks are")
    assert len(picture.axes) == n and picture.size[0] <= 760
    assert all(len(image) > 2000 for image in picture.themed())
