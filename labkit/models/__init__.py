"""Small models to train: plain torch modules with nothing distributed in them."""

from labkit.models.gpt import GPT, GPTConfig
from labkit.models.image_models import IMAGE_MODELS, image_model
from labkit.models.mlp import ImageMLP
from labkit.models.resnet import ResNet
from labkit.models.vit import ViT

__all__ = ["GPT", "IMAGE_MODELS", "GPTConfig", "ImageMLP", "ResNet", "ViT", "image_model"]
