"""Handwritten digits of 8 x 8 pixels, as scikit-learn ships them (UCI, "Optical Recognition of Handwritten Digits")."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from labkit.installing import how_to_install

_TRAIN = 1437
"""Number of training pictures: four fifths of 1797."""
_SEED = 0


def digits(split: Literal["train", "test"] = "train") -> TensorDataset:
    """Return the 1437 training pictures or the 360 test pictures.

    Its `tensors` are images, (n, 1, 8, 8) float32 from 0 to 1, and labels, (n,) int64 from 0 to 9. The digits are
    shuffled, in the same order on every machine.
    Raises ValueError for another `split`, ModuleNotFoundError if scikit-learn is not installed.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    images, labels = _shuffled()
    part = slice(_TRAIN) if split == "train" else slice(_TRAIN, None)
    # callers may modify the tensors in place
    return TensorDataset(images[part].clone(), labels[part].clone())


@functools.cache
def _shuffled() -> tuple[Tensor, Tensor]:
    # read the file as load_digits does: importing scikit-learn would take each rank a second or more
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        how = how_to_install("scikit-learn", "learning")
        raise ModuleNotFoundError(f"the digits come with scikit-learn, which is not installed: {how}")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32))
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(_SEED))]
    return (table[:, :-1] / 16).view(-1, 1, 8, 8), table[:, -1].long()
