"""Descriptions of models: how many parameters, FLOPs and bytes of activations they have."""

from labkit.predict.describe.convolutional import Convolution, Convolutional, resnet
from labkit.predict.describe.counting import Counted, count
from labkit.predict.describe.dense import MLP
from labkit.predict.describe.transformer import CONVENTIONS, Convention, Transformer
from labkit.predict.describe.work import Block, Product
from labkit.predict.describe.zoo import MODELS, Description, model

__all__ = [
    "CONVENTIONS", "MLP", "MODELS", "Block", "Convention", "Convolution", "Convolutional", "Counted", "Description",
    "Product", "Transformer", "count", "model", "resnet",
]  # fmt: skip
