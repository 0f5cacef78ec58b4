"""Checkpoints that survive a crash at any moment, written behind training, and loaded on any number of ranks.

A checkpoint is written under another name, synced to the disk, and only then renamed: whatever happens, a folder of its
name is complete (Pillai et al. 2014 show what else file systems may leave). Each rank writes its part. A copy of the
state is all that training waits for; a thread writes it (CheckFreq, Mohan et al. 2021).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from labkit.course.phase4_production.checkpointing import given
from labkit.course.phase4_production.checkpointing.given import CheckpointError, Storage

__all__ = ["CheckpointError", "DistributedCheckpointer"]


class DistributedCheckpointer(given.CheckpointerBase):
    """Saves and loads what a training consists of, in folders `step_00000120` of `checkpoint_dir`.

    DistributedCheckpointer(checkpoint_dir, keep_last_n=3, checkpoint_interval_minutes=30.0, *, group=None,
    format="sharded", metric=None, mode="min", storage=None, timeout_seconds=1800.0)

    checkpoint_dir: a folder that all ranks share, or an address of fsspec, `memory://run1`. keep_last_n: how many
    checkpoints are kept; the best one stays beside them. group: the ranks that train together, None: all; each calls
    every method, with the same arguments. format: "sharded", each rank writes its part, or "full", the first rank
    writes all. metric: which of the `metrics` decides what is the best checkpoint; mode: "min" or "max". storage: where
    the files are, in place of `checkpoint_dir`. All methods raise ValueError before any communication.

    Components, by name, are modules, optimizers, schedulers, samplers, loss scales, whatever has `state_dict` and
    `load_state_dict`, and tensors. All ranks have them alike, but for shards of exercise 15. `load_latest_checkpoint`,
    `load_best_checkpoint`, both of components, and `cleanup_old_checkpoints` are given; they call methods below.
    """

    def should_checkpoint(self, step: int) -> bool:
        """Return whether the interval is over, counted from the last save or the start: the same answer on all ranks.

        Never for the step that is saved already. Clocks of ranks differ: the first rank's counts. One small message.
        """
        # TODO 1. `time.monotonic()`, `self.last_save_seconds`, `self.interval_seconds`, `self.last_step`.
        # `given.exchange(value, self.decision_group)` returns the values of all ranks, in their order.
        ### BEGIN SOLUTION
        due = time.monotonic() - self.last_save_seconds >= self.interval_seconds and step != self.last_step
        return bool(given.exchange(due, self.decision_group)[0])
        ### END SOLUTION

    def together(self, action: Callable[[], Any]) -> list[Any]:
        """Call `action` on each rank, and return what it returns on all of them, plain data, in the ranks' order.

        If it raises on any rank, all raise `CheckpointError`, which names the rank and says what happened there. So no
        rank waits for one that has failed.
        """
        # This belongs to TODO 1, too; here it is `self.group`. `given.describe(error)` is a text, and `given.failure`
        # makes the error out of those of all ranks, None for those without one.
        ### BEGIN SOLUTION
        result, problem = None, None
        try:
            result = action()
        except Exception as error:
            problem = given.describe(error)
        results, problems = zip(*given.exchange([result, problem], self.group), strict=True)
        if any(problems):
            raise given.failure(problems)
        return list(results)
        ### END SOLUTION

    def clean(self) -> None:
        """Remove checkpoints but the `keep_last_n` newest and the best one, and what a crash has left unfinished.

        Those that are torn do not count, and go, too. If none that would stay can be loaded, all stay.
        """

        # TODO 2. The first rank does. `given.checkpoint_folders`, the newest first, `given.unfinished_folders`, and
        # `self.best_first`, of `self.storage`. `given.is_complete(self.storage, folder)` compares sizes;
        # `given.is_loadable` reads all that there is: do without it where you know better, by `self.newest`.
        ### BEGIN SOLUTION
        def remove() -> None:
            if self.rank:
                return
            folders = given.checkpoint_folders(self.storage)
            complete = [folder for folder in folders if given.is_complete(self.storage, folder)]
            keep = complete[: self.keep_last_n] + self.best_first(self.storage)[:1]
            old = [folder for folder in folders if folder not in keep]
            if not any(one == self.newest or given.is_loadable(self.storage, one) for one in keep):
                old = []
            for folder in given.unfinished_folders(self.storage) + old:
                self.storage.remove(folder)

        self.together(remove)
        ### END SOLUTION

    def save_checkpoint(
        self, step: int, components: Mapping[str, Any], metrics: Mapping[str, float] | None = None
    ) -> Path:
        """Save; return the folder as soon as it is sure to survive a power failure. Then remove old checkpoints.

        Random states of torch, NumPy and Python, of each rank its own, are in it, too. If any rank cannot write, all
        raise `CheckpointError`, and earlier checkpoints are as before.
        """
        given.check_save(step, components, metrics, self.metric)
        self.finish_writing()
        return self.write(step, self.snapshot(step, components, copy=False), metrics)

    def write(self, step: int, snapshot: given.Snapshot, metrics: Mapping[str, float] | None) -> Path:
        """Write the snapshots of all ranks as the checkpoint of a step."""

        # TODO 3. The first rank makes the folder `given.new_folder(self.storage, step)` with ".tmp" behind its name.
        # Each rank writes `snapshot.file` there, from `snapshot.parts()`, and returns `snapshot.describe()`. When all
        # have, the first rank writes `given.MANIFEST`, [given.manifest_text(step, metrics, descriptions)], and renames
        # the folder. In a power failure the rename may survive while what was written before is lost, unless it was
        # synced. Names are lost, too, as long as their folder is not synced.
        ### BEGIN SOLUTION
        def begin() -> str | None:
            if self.rank:
                return None
            folder = given.new_folder(self.storage, step)
            self.storage.make_folder(f"{folder}.tmp")
            return folder

        def write_own() -> dict[str, Any]:
            self.storage.write(f"{folder}.tmp/{snapshot.file}", snapshot.parts())
            self.storage.sync(f"{folder}.tmp/{snapshot.file}")
            return snapshot.describe()

        def commit() -> None:
            if self.rank:
                return
            manifest = f"{folder}.tmp/{given.MANIFEST}"
            self.storage.write(manifest, [given.manifest_text(step, metrics, descriptions)])
            self.storage.sync(manifest)
            self.storage.sync(f"{folder}.tmp")
            self.storage.rename(f"{folder}.tmp", folder)
            self.storage.sync("")

        folder: str = self.together(begin)[0]
        descriptions = self.together(write_own)
        self.together(commit)
        ### END SOLUTION
        self.newest = folder
        self.clean()
        return Path(self.checkpoint_dir) / folder

    def save_async(self, step: int, components: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """As `save_checkpoint`, but return when the state is copied; a thread writes it. At the end, `wait()`.

        At most one is being written: this waits for the one before, and raises its error, as saving and loading do.
        """
        given.check_save(step, components, metrics, self.metric)
        # TODO 4. `self.snapshot(...)`, and `given.start(function, *arguments)`, which calls it in a thread, is
        # `self.writing`.
        ### BEGIN SOLUTION
        self.wait()
        self.writing = given.start(self.write, step, self.snapshot(step, components, copy=True), metrics)
        ### END SOLUTION

    def wait(self) -> None:
        """Wait for what `save_async` has begun, if anything. Raises its error, once."""
        # This belongs to TODO 4, too. `self.writing.result()` waits; afterwards there is nothing to wait for.
        ### BEGIN SOLUTION
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()
        ### END SOLUTION

    def load_first(self, components: Mapping[str, Any], order: Callable[[Storage], list[str]]) -> int | None:
        """Load the first checkpoint of `order(self.storage)`, folders, that all ranks can read; return its step.

        Warns of each one that is skipped, by its name. Nothing changes in the components before all ranks can read it.
        None if there is no checkpoint. Raises `CheckpointError` if there are some, but none can be loaded.
        """
        # TODO 5. Ranks may see different folders for a while: whose list counts? `self.read(folder, components)` may
        # fail on one rank only; `self.loaded.apply()` puts what it has read into the components and returns the step.
        ### BEGIN SOLUTION
        problems = []
        for folder in self.together(lambda: order(self.storage) if self.rank == 0 else None)[0]:
            try:
                self.together(partial(self.read, folder, components))
            except CheckpointError as error:
                problems.append(f"{folder}: {error}")
                warnings.warn(f"skipped checkpoint {problems[-1]}", stacklevel=3)
            else:
                self.newest = folder
                return self.loaded.apply()
        if problems:
            raise CheckpointError(f"no checkpoint can be loaded: {'; '.join(problems)}")
        return None
        ### END SOLUTION
