"""Small models to train: plain torch modules with nothing distributed in them."""

from labkit.models.gpt import GPT, GPTConfig

__all__ = ["GPT", "GPTConfig"]
