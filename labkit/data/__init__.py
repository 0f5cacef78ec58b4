"""Data that needs no download, the same on every rank: pictures of digits, and the standard library's source text.

    train, test = digits("train"), digits("test")            # 1437 and 360 pictures
    images, labels = train.tensors                           # (n, 1, 8, 8) and (n,)

    text = source_text("train")                              # (length,), bytes
    batches = DataLoader(Windows(text, context=128), batch_size=16, sampler=...)

    mine = shard(train, dist.get_rank(), dist.get_world_size())

    images = image_sets("digits")                            # or a folder such as ImageNet's: training and test images

The split of an example is fixed, so that no rank trains on another one's test data.
"""

from labkit.data.augmentation import set_epoch
from labkit.data.digits import digits
from labkit.data.image_folder import ImageFolder
from labkit.data.image_sets import ImageSets, image_sets
from labkit.data.sharding import shard
from labkit.data.source_text import VOCAB, Windows, source_text

__all__ = [
    "VOCAB", "ImageFolder", "ImageSets", "Windows", "digits", "image_sets", "set_epoch", "shard", "source_text",
]  # fmt: skip
