"""The picture of a checkpointed backward: the order of work, and what is held."""

import pytest

from labkit.plots import recomputation
from labkit.plots.schedules.recomputation import held, schedule


def test_each_segment_but_the_last_runs_forward_again_just_before_its_backward() -> None:
    steps = [(step.work, step.layer) for step in schedule(4, 2)]
    assert steps == [
        *(("forward", layer) for layer in range(4)),
        ("backward", 3), ("backward", 2),
        ("again", 0), ("again", 1), ("backward", 1), ("backward", 0),
    ]  # fmt: skip


@pytest.mark.parametrize(("layers", "segments", "most"), [(9, 3, 5), (16, 4, 7), (8, 1, 8), (8, 8, 8)])
def test_what_is_held_is_an_input_per_segment_and_one_segment(layers: int, segments: int, most: int) -> None:
    counts = [len(held(layers, segments, done)) for done in range(len(schedule(layers, segments)) + 1)]
    # the first input of the segment in work is among the inputs per segment
    assert max(counts) == most == segments + layers // segments - 1
    assert counts[-1] == 0


def test_the_picture_names_the_last_work_and_what_is_held() -> None:
    assert recomputation(9, 3, 13).alt == (
        "Checkpointing of 9 layers in 3 segments, step 13 of 24. Last: forward again of layer 3. "
        "Held: the inputs of 2 layers, at most 5."
    )
    for layers, segments, done in ((9, 2, 0), (25, 5, 0), (9, 3, 25)):
        with pytest.raises(ValueError, match="must be"):
            recomputation(layers, segments, done)
