"""The digits: the same on every rank, with a fixed split."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

from labkit import Job, local
from labkit.data import digits, shard


def test_every_picture_of_scikit_learn_is_in_one_part() -> None:
    parts = [digits("train").tensors, digits("test").tensors]
    assert [len(images) for images, _ in parts] == [1437, 360]
    bunch = load_digits()
    wanted = [(tuple(picture), label) for picture, label in zip(bunch.data, bunch.target, strict=True)]
    seen = [
        (tuple((image * 16).flatten().tolist()), int(label))
        for images, labels in parts
        for image, label in zip(images, labels, strict=True)
    ]
    assert sorted(seen) == sorted(wanted)


@pytest.mark.parametrize("split", ["train", "test"])
def test_each_digit_is_in_both_parts_about_equally_often(split: str) -> None:
    images, labels = digits(split).tensors  # type: ignore[arg-type]
    assert (images.dtype, images.shape[1:], labels.dtype) == (torch.float32, (1, 8, 8), torch.int64)
    assert images.min() == 0 and images.max() == 1
    shares = labels.bincount(minlength=10) / len(labels)
    assert shares.min() > 0.07 and shares.max() < 0.13


def test_ranks_have_the_same_pictures_whatever_their_seed() -> None:
    def on_rank() -> tuple[float, list[int]]:
        import os

        from labkit.data import digits

        torch.manual_seed(int(os.environ["RANK"]))
        images, labels = digits("test").tensors
        return images[17].sum().item(), labels[:20].tolist()

    run = local(nproc_per_node=2).run(Job.calling(on_rank)).raise_if_failed()
    images, labels = digits("test").tensors
    assert run.values == [(images[17].sum().item(), labels[:20].tolist())] * 2


def test_what_one_caller_changes_no_other_one_sees() -> None:
    digits("test").tensors[0].fill_(7)
    assert digits("test").tensors[0].max() == 1


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(ValueError, match="split must be 'train' or 'test', got 'all'"):
        digits("all")  # type: ignore[arg-type]


def test_each_example_is_in_one_shard() -> None:
    dataset = TensorDataset(torch.arange(10))
    shards = [[int(value) for (value,) in shard(dataset, rank, 4)] for rank in range(4)]
    assert shards == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    with pytest.raises(ValueError, match="got 4"):
        shard(dataset, 4, 4)
