"""Descriptions of models: numbers of parameters and FLOPs, bytes of activations."""

from labkit.predict.describe.conventions import CONVENTIONS, Convention
from labkit.predict.describe.convolutional import Convolution, Convolutional, resnet
from labkit.predict.describe.counting import ModuleCosts, count
from labkit.predict.describe.dense import MLP
from labkit.predict.describe.transformer import Transformer
from labkit.predict.describe.work import Block, Product
from labkit.predict.describe.zoo import MODELS, Description, model

__all__ = [
    "CONVENTIONS", "MLP", "MODELS", "Block", "Convention", "Convolution", "Convolutional", "Description",
    "ModuleCosts", "Product", "Transformer", "count", "model", "resnet",
]  # fmt: skip
