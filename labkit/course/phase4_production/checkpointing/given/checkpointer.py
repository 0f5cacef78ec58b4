"""Base of exercise 20's `DistributedCheckpointer`: its arguments, its state, and which checkpoints come first."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from torch.distributed import ProcessGroup

from labkit.course.phase4_production.checkpointing.given.agreement import own_group
from labkit.course.phase4_production.checkpointing.given.arguments import (
    rank_and_size,
    require_components,
    require_metric,
    require_options,
    storage_at,
)
from labkit.course.phase4_production.checkpointing.given.loading import LoadedState
from labkit.course.phase4_production.checkpointing.given.manifest import checkpoint_folders, metric_of
from labkit.course.phase4_production.checkpointing.given.random_states import RandomStates
from labkit.course.phase4_production.checkpointing.given.snapshot import Snapshot
from labkit.course.phase4_production.checkpointing.given.storage import Storage


class CheckpointerBase:
    """Base of `DistributedCheckpointer`. See there for the arguments."""

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
        storage: Storage | None = None,
        timeout_seconds: float = 1800.0,
    ) -> None:
        require_options(keep_last_n, checkpoint_interval_minutes, format, metric, mode, storage)
        self.checkpoint_dir, self.keep_last_n, self.format = checkpoint_dir, keep_last_n, format
        self.interval_seconds = 60 * checkpoint_interval_minutes
        self.metric, self.mode = metric, mode
        self.storage = storage_at(checkpoint_dir, format, group) if storage is None else storage
        self.group = own_group(group, timeout_seconds)
        """Group for saving and loading, apart from that of training: a thread may be writing meanwhile."""
        self.decision_group = own_group(group, timeout_seconds)
        """Group for decisions, which training may make while a thread is writing."""
        self.rank, self.ranks = rank_and_size(self.group)
        self.last_save_seconds = time.monotonic()
        """Time of the last save, or of the start, by this rank's clock."""
        self.last_step = -1
        """Step of the last save."""
        self.newest = ""
        """Folder that was written or loaded last: it is known to be good."""
        self.writing: Future[Path] | None = None
        """Checkpoint that a thread is writing; None: none."""

    def snapshot(self, step: int, components: Mapping[str, Any], copy: bool) -> Snapshot:
        """Return this rank's snapshot, random states included. copy: components may change before it is written."""
        self.last_save_seconds, self.last_step = time.monotonic(), step
        return Snapshot(self._all(components), self.rank, self.ranks, self.format, copy)

    def read(self, folder: str, components: Mapping[str, Any]) -> None:
        """Read this rank's part of a checkpoint into `self.loaded`, whose `apply()` changes the components."""
        self.loaded = LoadedState(self.storage, folder, self._all(components), self.rank)

    @staticmethod
    def _all(components: Mapping[str, Any]) -> dict[str, Any]:
        return {**components, "random_states": RandomStates()}

    def load_latest_checkpoint(self, components: Mapping[str, Any]) -> int | None:
        """Load the newest checkpoint that all ranks can read; return its step, or None if there is no checkpoint.

        Any number of ranks may have saved it; random states are those of the same rank, if it existed. A checkpoint
        that is torn or corrupt is skipped with a warning that names it. Nothing changes in the components before one
        is read and verified on all ranks. Raises `CheckpointError` if there are checkpoints, but none can be loaded.
        """
        require_components(components)
        self.finish_writing()
        return self.load_first(components, checkpoint_folders)

    def load_best_checkpoint(self, components: Mapping[str, Any]) -> int | None:
        """Load as `load_latest_checkpoint` does, but the checkpoint with the best metric first."""
        require_components(components)
        require_metric(self.metric)
        self.finish_writing()
        return self.load_first(components, self.best_first)

    def finish_writing(self) -> None:
        """Wait for the save that `save_async` has begun, if there is one."""
        if self.writing is not None:
            self.wait()

    def best_first(self, storage: Storage) -> list[str]:
        """Return the folders whose checkpoints have the metric, the best first; of equal ones the newest first."""
        if self.metric is None:
            return []
        values = {folder: metric_of(storage, folder, self.metric) for folder in checkpoint_folders(storage)}
        known = {folder: value for folder, value in values.items() if value is not None}
        return sorted(known, key=lambda folder: known[folder] if self.mode == "min" else -known[folder])

    def cleanup_old_checkpoints(self) -> None:
        """Remove all checkpoints but the `keep_last_n` newest and the best one, and those that a crash left unfinished.

        Torn checkpoints do not count, and are removed, too. If none of those to be kept can be loaded, all are kept.
        """
        self.finish_writing()
        self.clean()

    # What the exercise writes -----------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait until the thread has written its checkpoint. Raises its error."""
        raise NotImplementedError

    def clean(self) -> None:
        """Remove old checkpoints."""
        raise NotImplementedError

    def load_first(self, components: Mapping[str, Any], order: Callable[[Storage], list[str]]) -> int | None:
        """Load the first checkpoint that all ranks can read."""
        raise NotImplementedError
