"""The plot of shards: every sample is shown on the rank that gets it."""

from __future__ import annotations

import io

from PIL import Image

from labkit.plots import shards


def test_every_sample_stands_in_its_cell() -> None:
    grids = {"on 3 ranks": [[0, 3], [1, 4], [2, None]], "on 2 ranks": [[0, 2, 4], [1, 3]]}
    picture = shards(grids, 5, title="Five samples")
    seen = [
        {(round(text.get_position()[0]), round(text.get_position()[1])): text.get_text() for text in axes.texts}
        for axes in picture.axes
    ]
    for cells, grid in zip(seen, grids.values(), strict=True):
        dealt = {(step, rank): sample for rank, share in enumerate(grid) for step, sample in enumerate(share)}
        assert cells == {cell: str(sample) for cell, sample in dealt.items() if sample is not None}
    assert [axes.get_title(loc="left") for axes in picture.axes] == list(grids)


def test_words_say_what_the_picture_shows() -> None:
    picture = shards({"in order": [[0, 2], [1, None]]}, 3)
    assert picture.alt == "Samples of each rank: 1 grid of ranks by steps. in order: rank 0 has 0 2; rank 1 has 1 -."


def test_it_draws_with_nothing_in_it() -> None:
    image = Image.open(io.BytesIO(shards({"no samples": [[], []]}, 0).png()))
    assert image.width > 100
