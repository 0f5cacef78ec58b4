"""Checkpoints that survive a crash at any moment, written behind training, and loaded on any number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.distributed import ProcessGroup

__all__ = ["DistributedCheckpointer"]


class DistributedCheckpointer:
    """Saves and loads what a training consists of, in folders `step_00000120` of `checkpoint_dir`.

    checkpoint_dir: a folder that all ranks share, or an address of fsspec, `memory://run1`. keep_last_n: how many
    checkpoints are kept, and the best one beside them. checkpoint_interval_minutes: see `should_checkpoint`. group: the
    ranks that train together, all ranks if None; each calls every method, alike. format: "sharded", each rank writes
    its part, or "full", the first rank writes all. metric: name of the metric in `metrics` that decides which
    checkpoint is the best one; mode: "min" or "max". storage: where files are, instead of `checkpoint_dir`.
    Raises ValueError before any communication.

    Components are modules, optimizers, schedulers, samplers, loss scales and all else that has `state_dict` and
    `load_state_dict`, and tensors. Ranks have the same state, except shards of exercise 15, of which each has its own.
    """

    def __init__(
        self,
        checkpoint_dir: str | Path,
        keep_last_n: int = 3,
        checkpoint_interval_minutes: float = 30.0,
        *,
        group: ProcessGroup | None = None,
        format: str = "sharded",
        metric: str | None = None,
        mode: str = "min",
        storage: Any = None,
    ) -> None:
        raise NotImplementedError

    def should_checkpoint(self, step: int) -> bool:
        """Return whether the interval since the last save, or the start, is over: one answer for all ranks."""
        raise NotImplementedError

    def save_checkpoint(self, step: int, components: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> Path:
        """Save; return the folder when it will survive a power failure. Random states of all ranks are in it, too.

        Raises `CheckpointError` on all ranks if any cannot write; earlier checkpoints are then as before.
        """
        raise NotImplementedError

    def save_async(self, step: int, components: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """As `save_checkpoint`, but returns when the state is copied; a thread writes it.

        At most one is being written: waits for the one before, and raises its error.
        """
        raise NotImplementedError

    def wait(self) -> None:
        """Wait until what `save_async` has begun is written. Raises its error, once."""
        raise NotImplementedError

    def load_latest_checkpoint(self, components: Mapping[str, Any]) -> int | None:
        """Load the newest checkpoint that all ranks can read into the components; return its step, or None.

        On any number of ranks. Others are skipped, with a warning that names them. Changes nothing before all can.
        """
        raise NotImplementedError

    def load_best_checkpoint(self, components: Mapping[str, Any]) -> int | None:
        """As `load_latest_checkpoint`, of those with the best metric."""
        raise NotImplementedError

    def cleanup_old_checkpoints(self) -> None:
        """Remove all but the `keep_last_n` newest and the best one; and what crashed jobs left. Never the last loadable."""
        raise NotImplementedError
