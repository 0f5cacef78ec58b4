"""Training and test images by the name of the data: the digits, or a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from labkit.data.digits import digits
from labkit.data.image_folder import ImageFolder


class ImageSets(NamedTuple):
    """Two data sets of pairs of image and label, and the images' shape."""

    training: Any
    test: Any
    channels: int
    size: int
    """Height and width."""
    classes: int


def image_sets(data: str | Path = "digits", size: int = 224, seed: int = 0, skip_unreadable: bool = False) -> ImageSets:
    """Return the digits, or the images of a folder that has `train/CLASS/` and `val/CLASS/`, in `size` x `size` pixels.

    Training images of a folder differ in each epoch: parts of them, mirrored or not.
    skip_unreadable: as `ImageFolder`'s.
    Raises ValueError if the folder lacks one of the two, or their classes differ.
    """
    if data == "digits":
        return ImageSets(digits("train"), digits("test"), 1, 8, 10)
    training = ImageFolder(Path(data) / "train", size, True, seed, skip_unreadable)
    test = ImageFolder(Path(data) / "val", size, False, skip_unreadable=skip_unreadable)
    if training.classes != test.classes:
        differing = sorted(set(training.classes) ^ set(test.classes))
        raise ValueError(f"data must have the same classes in train and val, got {', '.join(differing)} in one only")
    return ImageSets(training, test, 3, size, len(training.classes))
