"""Adam's update: the function behind `torch.optim.Adam` and `AdamW`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.optim import adam as adams

Update = Callable[..., None]
"""(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, **options): lists of tensors, one each a
parameter, all but the gradients updated in place.
"""


def adam_with(update: Callable[[Update, tuple[list[Any], ...], dict[str, Any]], None]) -> None:
    """Call `update(original, lists, options)` for each step of Adam and AdamW in this process."""
    module: Any = adams
    original: Update = module.adam

    @functools.wraps(original)
    def adam(*lists: list[Any], **options: Any) -> None:
        update(original, lists, options)

    module.adam = adam
