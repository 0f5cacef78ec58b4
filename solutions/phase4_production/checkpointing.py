"""Checkpoints that survive a crash at any moment, written behind training, and loaded on any number of ranks.

A checkpoint is written under another name, synced to the disk, and only then renamed: whatever happens, a folder of its
name is complete (Pillai et al. 2014 show what else file systems may leave). Each rank writes its part. The copy of the
state is all that training waits for; a thread writes it (CheckFreq, Mohan et al. 2021).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from torch.distributed import ProcessGroup

from labkit.parallel import checkpointing as given
from labkit.parallel.checkpointing import CheckpointError, Storage

__all__ = ["CheckpointError", "DistributedCheckpointer"]


class DistributedCheckpointer:
    """Saves and loads what a training consists of, in folders `step_00000120` of `checkpoint_dir`.

    checkpoint_dir: a folder that all ranks share, or an address of fsspec, `memory://run1`. keep_last_n: how many
    checkpoints are kept; the best one stays beside them. checkpoint_interval_minutes: see `should_checkpoint`. group:
    the ranks that train together, None: all; each calls every method, with the same arguments. format: "sharded", each
    rank writes its part, or "full", the first rank writes all. metric: which of `metrics` decides what is the best
    checkpoint; mode: "min" or "max". storage: where the files are, in place of `checkpoint_dir`. Raises ValueError
    before any communication, and so do all methods.

    Components, by name, are modules, optimizers, schedulers, samplers, loss scales, whatever has `state_dict` and
    `load_state_dict`, and tensors. All ranks have them alike, but for shards of exercise 15.
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
        storage: Storage | None = None,
    ) -> None:
        given.check_options(keep_last_n, checkpoint_interval_minutes, format, metric, mode, storage)
        self.checkpoint_dir, self.keep_last_n, self.format = checkpoint_dir, keep_last_n, format
        self.interval_seconds = 60 * checkpoint_interval_minutes
        self.metric, self.mode = metric, mode
        self.storage = given.storage_at(checkpoint_dir, format, group) if storage is None else storage
        self.group = given.own_group(group)  # training communicates in another one while a thread writes
        self.rank, self.ranks = given.rank_and_size(self.group)
        self._last_save = time.monotonic()
        self._newest = ""  # folder that this job has written or loaded: known to be good
        self._writing: Future[Path] | None = None

    def should_checkpoint(self, step: int) -> bool:
        """Return whether the interval is over, counted from the last save or the start: the same answer on all ranks.

        Never for the step that is saved already. Clocks of ranks differ: the first rank's counts. One small message.
        """
        # TODO 1. `time.monotonic()`, `self._last_save`, `given.exchange(value, self.group)`, `given.folder_name(step)`
        ### BEGIN SOLUTION
        due = time.monotonic() - self._last_save >= self.interval_seconds
        return bool(given.exchange(due, self.group)[0]) and given.folder_name(step) != self._newest
        ### END SOLUTION

    def _together(self, action: Callable[[], Any]) -> list[Any]:
        """Call `action` on each rank, and return what it returns on all of them, plain data, in the ranks' order.

        If it raises on any rank, all raise `CheckpointError`, which names the rank and says what happened there. So no
        rank waits for one that has failed.
        """
        # This belongs to TODO 1, too. `given.describe(error)` is a text.
        ### BEGIN SOLUTION
        result, problem = None, None
        try:
            result = action()
        except Exception as error:
            problem = f"rank {self.rank}: {given.describe(error)}"
        answers = given.exchange([result, problem], self.group)
        if problems := [problem for _, problem in answers if problem]:
            raise CheckpointError("; ".join(problems))
        return [result for result, _ in answers]
        ### END SOLUTION

    def save_checkpoint(
        self, step: int, components: Mapping[str, Any], metrics: Mapping[str, float] | None = None
    ) -> Path:
        """Save; return the folder as soon as it is sure to survive a power failure. Then remove old checkpoints.

        Random states of torch, NumPy and Python, of each rank its own, are in it, too. If any rank cannot write, all
        raise `CheckpointError`, and earlier checkpoints are as before.
        """
        given.check_save(step, components, metrics, self.metric)
        self.wait()
        return self._write(step, self._snapshot(components, copy=False), metrics)

    def _snapshot(self, components: Mapping[str, Any], copy: bool) -> given.Snapshot:
        self._last_save = time.monotonic()
        components = {**components, "random_states": given.RandomStates()}
        return given.Snapshot(components, self.rank, self.ranks, self.format, copy)

    def _write(self, step: int, snapshot: given.Snapshot, metrics: Mapping[str, float] | None) -> Path:
        """Write a snapshot of all ranks as the checkpoint of a step."""
        folder = given.folder_name(step)
        temporary = f"{folder}.tmp"

        # TODO 2. The first rank makes the temporary folder. Each rank writes `snapshot.file` there, from
        # `snapshot.parts()`, and returns `snapshot.describe()`. When all have, the first rank writes `given.MANIFEST`,
        # [given.manifest_text(step, metrics, descriptions)], and renames the folder. A name or a content that is not
        # synced may be lost in a power failure, but the rename may survive it: what must be synced before, what after?
        ### BEGIN SOLUTION
        def begin() -> None:
            if self.rank == 0:
                self.storage.make_folder(temporary)

        def write_own() -> dict[str, Any]:
            self.storage.write(f"{temporary}/{snapshot.file}", snapshot.parts())
            self.storage.sync(f"{temporary}/{snapshot.file}")
            return snapshot.describe()

        def commit() -> None:
            if self.rank == 0:
                manifest = f"{temporary}/{given.MANIFEST}"
                self.storage.write(manifest, [given.manifest_text(step, metrics, descriptions)])
                self.storage.sync(manifest)
                self.storage.sync(temporary)
                if folder in given.checkpoint_folders(self.storage):
                    self.storage.remove(folder)
                self.storage.rename(temporary, folder)
                self.storage.sync("")

        self._together(begin)
        descriptions = self._together(write_own)
        self._together(commit)
        ### END SOLUTION
        self._newest = folder
        self.cleanup_old_checkpoints()
        return Path(self.checkpoint_dir) / folder

    def save_async(
        self, step: int, components: Mapping[str, Any], metrics: Mapping[str, float] | None = None
    ) -> None:
        """As `save_checkpoint`, but return when the state is copied; a thread writes it. At the end, `wait()`.

        At most one is being written: this waits for the one before, and raises its error, as all other methods do.
        """
        given.check_save(step, components, metrics, self.metric)
        # TODO 3. `given.start(function, *arguments)` calls it in a thread.
        ### BEGIN SOLUTION
        self.wait()
        self._writing = given.start(self._write, step, self._snapshot(components, copy=True), metrics)
        ### END SOLUTION

    def wait(self) -> None:
        """Wait for what `save_async` has begun, if anything. Raises its error, once."""
        # This belongs to TODO 3, too.
        ### BEGIN SOLUTION
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
        ### END SOLUTION

    def load_latest_checkpoint(self, components: Mapping[str, Any]) -> int | None:
        """Load the newest checkpoint that all ranks can read; return its step, or None if there is no checkpoint.

        Saved on any number of ranks; random states are those of the rank of this number, if there was one. A checkpoint
        that is torn or corrupt is skipped with a warning that names it. Nothing changes in the components before one
        is read and verified on all ranks. Raises `CheckpointError` if there are checkpoints, but none can be loaded.
        """
        given.check_components(components)
        self.wait()
        return self._load(components, given.checkpoint_folders)

    def load_best_checkpoint(self, components: Mapping[str, Any]) -> int | None:
        """As `load_latest_checkpoint`, of the checkpoints with the best value of the metric first."""
        given.check_components(components)
        given.check_metric(self.metric)
        self.wait()
        return self._load(components, self._best_first)

    def _best_first(self, storage: Storage) -> list[str]:
        """Return the folders that have the metric, the best first; of equal ones the newest first."""
        values = {one: given.metric_of(storage, one, self.metric or "") for one in given.checkpoint_folders(storage)}
        found = {folder: value for folder, value in values.items() if value is not None}
        return sorted(found, key=lambda folder: found[folder], reverse=self.mode == "max")

    def _load(self, components: Mapping[str, Any], order: Callable[[Storage], list[str]]) -> int | None:
        """Load the first checkpoint of `order(self.storage)`, folders, that all ranks can read."""
        components = {**components, "random_states": given.RandomStates()}
        # TODO 4. Ranks may see different folders for a while: whose list counts? All must load the same checkpoint, and
        # `given.LoadedState(self.storage, folder, components, self.rank)` may raise on one of them only.
        ### BEGIN SOLUTION
        problems = []
        for folder in self._together(lambda: order(self.storage) if self.rank == 0 else None)[0]:
            found: list[given.LoadedState] = []
            try:
                self._together(lambda: found.append(given.LoadedState(self.storage, folder, components, self.rank)))
            except CheckpointError as error:
                problems.append(f"{folder}: {error}")
                warnings.warn(f"checkpoint {problems[-1]}; skipped", stacklevel=3)
                continue
            self._newest = folder
            return found[0].apply()
        if problems:
            raise CheckpointError(f"no checkpoint can be loaded: {'; '.join(problems)}")
        return None
        ### END SOLUTION

    def cleanup_old_checkpoints(self) -> None:
        """Remove checkpoints but the `keep_last_n` newest and the best one, and what a crash has left unfinished.

        Those that are torn do not count, and go, too. If none that would stay can be loaded, all stay.
        """

        # TODO 5. `given.is_complete` looks at the manifest and at sizes; `given.is_loadable` reads all that there is.
        ### BEGIN SOLUTION
        def clean() -> None:
            if self.rank:
                return
            folders = given.checkpoint_folders(self.storage)
            complete = [folder for folder in folders if given.is_complete(self.storage, folder)]
            keep = [*complete[: self.keep_last_n], *(self._best_first(self.storage)[:1] if self.metric else [])]
            old = [folder for folder in folders if folder not in keep]
            if old and not any(one == self._newest or given.is_loadable(self.storage, one) for one in keep):
                old = []
            for folder in [*given.unfinished_folders(self.storage), *old]:
                self.storage.remove(folder)

        self._together(clean)
        ### END SOLUTION
