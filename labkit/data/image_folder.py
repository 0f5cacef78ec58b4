"""Images in folders, one for each class, as ImageNet's: `train/n01440764/n01440764_10026.JPEG`.

Only what is asked for is read: with a sampler for each rank, each rank reads and decodes its own share of the files.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from labkit.data.augmentation import Augmentation

SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".webp"}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's red, green and blue, from 0 to 1."""

IGNORED = -100
"""Label of a test image that cannot be read: torch's cross entropy ignores it."""


class UnreadableImage(ValueError):
    """A file is no image, or a broken one; the message begins with its path."""


class ImageFolder(Augmentation, Dataset[tuple[Tensor, int]]):
    """Samples are images (3, size, size), float32 with mean 0 and deviation 1 over ImageNet, and numbers of classes.

    folder: has a folder for each class, whose images are anywhere in it; classes are numbered in the order of their
    names. training: a random part of the image, 8 to 100 % of its area (Szegedy et al. 2015), mirrored or not; else its
    middle, 7/8 of the short side. Needs Pillow. Raises ValueError if there are no images.

    A file that cannot be read raises `UnreadableImage`, which names it. skip_unreadable: in its place is the next one
    that can; in test images, a black one with the label `IGNORED`. `unreadable` then shows which, also those that a
    loader's worker processes have met.
    """

    def __init__(
        self,
        folder: str | Path,
        size: int = 224,
        training: bool = True,
        seed: int = 0,
        skip_unreadable: bool = False,
    ) -> None:
        super().__init__(seed)
        root = Path(folder)
        self.size, self.training, self.skip_unreadable = size, training, skip_unreadable
        self.classes = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
        self.files: list[tuple[Path, int]] = []
        for number, name in enumerate(self.classes):
            images = sorted(path for path in (root / name).rglob("*") if path.suffix.lower() in SUFFIXES)
            self.files += [(path, number) for path in images]
        if not self.files:
            raise ValueError(f"folder must have a folder of images for each class, got {str(folder)!r}")
        self.unreadable = torch.zeros(len(self.files), dtype=torch.bool, device="cpu").share_memory_()
        """Files that this process and its children could not read so far, (len(self),)."""

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        for place in range(index, index + len(self.files)):
            other = place % len(self.files)
            if not self.unreadable[other]:
                try:
                    return self._sample(other)
                except UnreadableImage:
                    if not self.skip_unreadable:
                        raise
                    self.unreadable[other] = True
            if not self.training:
                return torch.zeros(3, self.size, self.size), IGNORED
        raise UnreadableImage(f"none of {len(self.files)} images can be read, such as {self.files[0][0]}")

    def _sample(self, index: int) -> tuple[Tensor, int]:
        """Return the sample of a file. Raises `UnreadableImage`."""
        from PIL import Image  # in the function: takes a tenth of a second, and few runs need it

        path, label = self.files[index]
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except Exception as error:  # of any decoder: OSError, SyntaxError, struct.error, ...
            raise UnreadableImage(f"{path}: {error}") from error
        generator = self.generator(index)
        box = random_box(image.size, generator) if self.training else middle_box(image.size)
        pixels = np.asarray(image.resize((self.size, self.size), Image.Resampling.BILINEAR, box), np.float32)
        tensor = torch.from_numpy((pixels / 255 - MEAN) / DEVIATION).float().permute(2, 0, 1).contiguous()
        if self.training and torch.rand((), generator=generator) < 0.5:
            tensor = tensor.flip(2)
        return tensor, label

    def problem(self, index: int) -> str:
        """Return why a file cannot be read, empty if it can."""
        try:
            self._sample(index)
        except UnreadableImage as error:
            return str(error).removeprefix(f"{self.files[index][0]}: ")
        return ""


def random_box(size: tuple[int, int], generator: torch.Generator) -> tuple[float, float, float, float]:
    """Return left, upper, right and lower of a part of the image: 8 to 100 % of its area, 3:4 to 4:3."""
    width, height = size
    for _ in range(10):
        share, shape, across, down = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
        area = (0.08 + 0.92 * share) * width * height
        ratio = math.exp((2 * shape - 1) * math.log(4 / 3))
        wide, high = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if wide <= width and high <= height:
            left, upper = across * (width - wide), down * (height - high)
            return left, upper, left + wide, upper + high
    return middle_box(size, 1.0)


def middle_box(size: tuple[int, int], share: float = 7 / 8) -> tuple[float, float, float, float]:
    """Return left, upper, right and lower of the square in the middle, with that share of the short side."""
    width, height = size
    side = share * min(width, height)
    left, upper = (width - side) / 2, (height - side) / 2
    return left, upper, left + side, upper + side
