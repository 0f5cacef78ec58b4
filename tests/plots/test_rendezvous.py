"""The plot of how ranks find each other."""

from __future__ import annotations

import pytest
from matplotlib.patches import Arc, FancyArrowPatch

from labkit.plots import Picture, rendezvous


def drawn(picture: Picture) -> tuple[int, int, set[str]]:
    """Return the number of messages, the number of connections, and the texts."""
    axes = picture.axes[0]
    kinds = [type(patch) for patch in axes.patches]
    return kinds.count(FancyArrowPatch), kinds.count(Arc), {text.get_text() for text in axes.texts}


@pytest.mark.parametrize(
    ("step", "messages", "connections", "store"),
    [(0, 0, 0, ""), (1, 0, 0, "empty"), (2, 4, 0, "0, 1, 2, 3"), (3, 4, 0, "0, 1, 2, 3"), (4, 0, 6, "0, 1, 2, 3")],
)
def test_each_step_shows_what_happens_in_it(step: int, messages: int, connections: int, store: str) -> None:
    arrows, arcs, texts = drawn(rendezvous(4, step))
    assert (arrows, arcs) == (messages, connections)
    assert {f"rank {rank} of 4" for rank in range(4)} <= texts
    assert ("knows all 4" if step > 2 else "knows itself") in texts
    shown = [text for text in texts if text.startswith("store")]
    assert len(shown) == bool(step) and all(store in text for text in shown)


def test_it_is_told_in_words_too() -> None:
    assert rendezvous(3, 2).alt == "Rendezvous of 3 ranks, step 2 of 4. Every rank sends its address to the store."


def test_what_cannot_be_drawn_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="step must be 0 to 4, got 5"):
        rendezvous(4, 5)
    with pytest.raises(ValueError, match="world_size must be 2 to 6, got 64"):
        rendezvous(64, 0)
