"""Random inputs for each run of a rubric: world sizes, shapes, dtypes, contents. The same seed repeats them all."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor


class Draw(random.Random):
    """A random generator for one check; draws depend only on the seed and the check's name, not on other checks."""

    def __init__(self, seed: int, name: str) -> None:
        super().__init__(f"{seed}:{name}")

    def tensor(self, shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Integers from -8 to 8 (unsigned: from 0), so that sums over ranks are exact in every dtype."""
        generator = torch.Generator().manual_seed(self.getrandbits(62))
        size = (shape,) if isinstance(shape, int) else tuple(shape)
        low = 0 if dtype == torch.uint8 else -8
        return torch.randint(low, 9, size, generator=generator).to(dtype)

    def tensors(self, count: int, shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """One tensor for each of `count` ranks."""
        return [self.tensor(shape, dtype) for _ in range(count)]
