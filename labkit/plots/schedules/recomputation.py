"""A checkpointed backward, step by step: which activations are held, and which layers run a second time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from matplotlib.patches import Patch, Rectangle

from labkit.plots import palette
from labkit.plots.picture import Picture
from labkit.trace import Category, Kind
from labkit.units import count

MOST_LAYERS = 24
_WORK = {
    "forward": palette.KIND[Kind.COMPUTE],
    "again": palette.SERIES[4],
    "backward": palette.SERIES[5],
}
_WORDS = {"forward": "forward", "again": "forward again", "backward": "backward"}


@dataclass(frozen=True)
class Step:
    """One layer's work: `again` is its second forward."""

    work: Literal["forward", "again", "backward"]
    layer: int


def schedule(layers: int, segments: int) -> list[Step]:
    """Work of a step of training in order, with `layers` cut into `segments` of equal length.

    Every segment but the last runs forward again before its backward, in which its activations are needed. Raises
    `ValueError` if the segments cannot be equal, or for more than 24 layers, which do not fit into a picture.
    """
    if not 1 <= layers <= MOST_LAYERS or segments < 1 or layers % segments:
        raise ValueError(f"layers must be 1 to {MOST_LAYERS}, in equal segments, got {layers} in {segments}")
    length = layers // segments
    steps = [Step("forward", layer) for layer in range(layers)]
    for first in range(layers - length, -1, -length):
        if first + length < layers:
            steps += [Step("again", layer) for layer in range(first, first + length)]
        steps += [Step("backward", layer) for layer in range(first + length - 1, first - 1, -1)]
    return steps


def held(layers: int, segments: int, done: int) -> set[int]:
    """Layers whose input is held after `done` steps: those that begin a segment, and all of the segment in work."""
    length = layers // segments
    holding: set[int] = set()
    for step in schedule(layers, segments)[:done]:
        if step.work == "backward":
            holding.discard(step.layer)
        elif step.work == "again" or step.layer % length == 0 or step.layer >= layers - length:
            holding.add(step.layer)
    return holding


def recomputation(layers: int, segments: int, done: int) -> Picture:
    """Draw a checkpointed step of training after `done` of its steps: above, what is held; below, the work so far.

    Raises `ValueError` as `schedule` does, and if `done` is not 0 to the number of steps.
    """
    steps = schedule(layers, segments)
    if not 0 <= done <= len(steps):
        raise ValueError(f"done must be 0 to {len(steps)}, got {done}")
    holding, length = held(layers, segments, done), layers // segments
    most = max(len(held(layers, segments, number)) for number in range(len(steps) + 1))
    subject = f"{count(layers, 'layer')} in {count(segments, 'segment')}"
    now = f"{_WORDS[steps[done - 1].work]} of layer {steps[done - 1].layer}" if done else "before the first layer"
    picture = Picture(
        height=3.2,
        alt=f"Checkpointing of {subject}, step {done} of {len(steps)}. Last: {now}. Held: the inputs of "
        f"{count(len(holding), 'layer')}, at most {most}.",
    )
    axes = picture.add_subplot()
    axes.set_title(f"{subject} · {now} · {len(holding)} held, at most {most}", loc="left", fontsize=11)
    axes.set_xlim(-1.6, layers - 0.4)
    axes.set_ylim(4.6, -0.7)
    axes.set_axis_off()
    for row, label in ((0, "held"), *((1 + number, _WORDS[work]) for number, work in enumerate(_WORK))):
        axes.text(-0.75, row, label, ha="right", va="center", fontsize=9)
    for layer in range(layers):
        colour = palette.MEMORY[Category.ACTIVATION] if layer in holding else palette.IDLE
        axes.add_patch(Rectangle((layer - 0.42, -0.36), 0.84, 0.72, facecolor=colour))
        axes.text(layer, 4.05, str(layer), ha="center", va="center", fontsize=8)
    for first in range(length, layers, length):
        axes.plot([first - 0.5] * 2, [-0.5, 3.6], color=palette.FAINT, linewidth=1, linestyle="--")
    axes.text((layers - 1) / 2, 4.5, "layer", ha="center", va="center", fontsize=9)
    for number, step in enumerate(steps[:done], start=1):
        row = 1 + list(_WORK).index(step.work)
        edge = "black" if number == done else "none"
        axes.add_patch(
            Rectangle(
                (step.layer - 0.42, row - 0.3), 0.84, 0.6, facecolor=_WORK[step.work], edgecolor=edge, linewidth=2
            )
        )
    legend = [
        Patch(color=palette.MEMORY[Category.ACTIVATION], label="input held"),
        Patch(color=palette.IDLE, label="not held"),
    ]
    picture.legend(handles=legend, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return picture
