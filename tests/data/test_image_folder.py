"""Images in folders: decoded, cut out and mirrored by numbers that depend on seed, epoch and index alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from labkit.data import ImageFolder, image_sets
from labkit.data.image_folder import IGNORED, UnreadableImage, middle_box, random_box


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes with two images each, of which each column has another colour."""
    for number, name in enumerate(("train/cat/a.jpg", "train/cat/deep/b.png", "train/dog/c.png", "train/dog/d.JPEG")):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.broadcast_to(np.linspace(0, 255, 60, dtype=np.uint8)[None, :, None], (40, 60, 3))
        Image.fromarray(np.roll(pixels, number, 2).copy()).convert("L" if number == 1 else "RGB").save(path)
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image")
    return tmp_path


def test_classes_are_folders_and_images_have_mean_and_deviation_of_imagenet(folder: Path) -> None:
    data = ImageFolder(folder / "train", 16, training=False)
    assert data.classes == ["cat", "dog"] and [label for _, label in data.files] == [0, 0, 1, 1]
    image, label = data[2]
    assert label == 1 and image.shape == (3, 16, 16) and image.dtype == torch.float32
    # the middle 35 of 60 columns, from 0 to 255 from left to right
    red = image[0, 8] * 0.229 + 0.485
    torch.testing.assert_close(red[[0, -1]], torch.tensor([0.22, 0.78]), atol=0.03, rtol=0)


def test_draws_depend_on_epoch_and_index_alone(folder: Path) -> None:
    data = ImageFolder(folder / "train", 16, seed=3)
    first = data[1][0]
    torch.rand(5)
    assert torch.equal(data[1][0], first)
    in_workers = torch.cat([images for images, _ in DataLoader(data, 1, num_workers=2)])
    assert torch.equal(in_workers[1], first)
    data.set_epoch(1)
    assert not torch.equal(data[1][0], first)


def test_random_boxes_are_within_the_image_and_cover_at_least_8_percent_of_it() -> None:
    for number in range(200):
        left, upper, right, lower = random_box((50, 400), torch.Generator().manual_seed(number))
        assert 0 <= left < right <= 50 and 0 <= upper < lower <= 400
        assert (right - left) * (lower - upper) >= 0.08 * 50 * 400 - 1e-6
    assert middle_box((80, 40)) == (22.5, 2.5, 57.5, 37.5)


def test_a_folder_without_images_or_with_other_classes_is_named(folder: Path) -> None:
    with pytest.raises(ValueError, match="folder of images for each class"):
        ImageFolder(folder / "nothing")
    (folder / "val" / "cat").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(folder / "val" / "cat" / "x.png")
    with pytest.raises(ValueError, match="same classes in train and val, got dog"):
        image_sets(folder, 16)


def test_a_file_that_cannot_be_read_is_named_or_skipped(folder: Path) -> None:
    broken = folder / "train/dog/d.JPEG"
    broken.write_bytes(broken.read_bytes()[:-40])
    with pytest.raises(UnreadableImage, match=r"d\.JPEG: image file is truncated \(\d+ bytes not processed\)"):
        ImageFolder(folder / "train", 16)[3]
    data = ImageFolder(folder / "train", 16, skip_unreadable=True)
    batches = [*DataLoader(data, 1, num_workers=2)]  # the worker's finding is this process's, too
    assert data.unreadable.tolist() == [False, False, False, True]
    assert data.problem(3).startswith("image file is truncated") and data.problem(0) == ""
    assert torch.equal(batches[3][0], batches[0][0]) and int(batches[3][1]) == 0
    test = ImageFolder(folder / "train", 16, training=False, skip_unreadable=True)
    assert [label for _, label in (test[index] for index in range(4))] == [0, 0, 1, IGNORED]


def test_the_digits_need_no_folder() -> None:
    sets = image_sets("digits")
    assert (len(sets.training), len(sets.test), sets.channels, sets.size, sets.classes) == (1437, 360, 1, 8, 10)
