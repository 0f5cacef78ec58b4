"""The source text of Python's standard library, which is on every machine, as tokens for language models.

A token is a byte. The 166 modules of Python 3.11 have 4.7 million; other Python versions have other text.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

VOCAB = 256
"""Number of tokens: bytes. 0 ends a file and occurs in no source text."""
_TENTH = 10


def source_text(split: Literal["train", "test"] = "train") -> Tensor:
    """Return the modules, sorted by name, as one tensor: (length,) uint8, a 0 after each module.

    About one module in ten is in the test split; its name alone decides. `bytes(tokens.tolist()).decode()` restores the
    text. Raises ValueError for another `split`, FileNotFoundError if Python was installed without its source text.
    """
    return torch.frombuffer(bytearray(source_bytes(split)), dtype=torch.uint8)


def source_bytes(split: Literal["train", "test"] = "train") -> bytes:
    """Return the same text as bytes, for programs whose tensors have no values. Raises as `source_text` does."""
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    return _text(split)


@functools.cache
def _text(split: str) -> bytes:
    folder = Path(sysconfig.get_path("stdlib"))
    # other files in the folder may contain paths of this machine
    modules = sorted(path for path in folder.glob("*.py") if path.stem in sys.stdlib_module_names)
    chosen = [path for path in modules if _is_for_testing(path.stem) == (split == "test")]
    if not chosen:
        raise FileNotFoundError(f"no source text of the standard library in {folder}")
    return b"".join(path.read_bytes() + b"\0" for path in chosen)


def _is_for_testing(module: str) -> bool:
    return zlib.crc32(module.encode()) % _TENTH == 0


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Consecutive windows of `context` tokens as (inputs, next tokens), both (context,) int64.

    Input i begins where input i-1 ended. A remainder shorter than a window is dropped.
    Raises ValueError if `tokens` is too short for one window, or if `context` is below 1.
    """

    def __init__(self, tokens: Tensor, context: int) -> None:
        if context < 1:
            raise ValueError(f"context must be at least 1, got {context}")
        if tokens.dim() != 1 or len(tokens) <= context:
            raise ValueError(f"tokens must be more than context={context} in one dimension, got {tuple(tokens.shape)}")
        self.tokens, self.context = tokens, context

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        begin = index * self.context
        piece = self.tokens[begin : begin + self.context + 1].long()
        return piece[:-1], piece[1:]
