"""Mutants of checkpointing: what is wrong in each, what it earns, and the checks that it loses."""

from __future__ import annotations

from autograder.mutants import Mutant

MUTANTS = {
    "renames_first": Mutant(23, loses={"complete_names"}).edited("""
        The folder gets its name before its content is synced.

        - self.storage.sync(manifest)
        - self.storage.sync(f"{folder}.tmp")
        - self.storage.rename(f"{folder}.tmp", folder)
        + self.storage.rename(f"{folder}.tmp", folder)
        + self.storage.sync(f"{folder}/{given.MANIFEST}")
        + self.storage.sync(folder)
    """),
    "never_syncs_files": Mutant(19, loses={"crashes", "complete_names"}).edited("""
        The ranks' files are written and not synced.

        - self.storage.sync(f"{folder}.tmp/{snapshot.file}")
        + pass
    """),
    "forgets_the_folder": Mutant(19, loses={"crashes", "complete_names"}).edited("""
        Files are synced, but not their names in the folder.

        - self.storage.sync(f"{folder}.tmp")
        + pass
    """),
    "forgets_the_rename": Mutant(21, loses={"crashes"}).edited("""
        The folder above is not synced after the rename: old checkpoints are removed while the new name may be lost.

        - self.storage.sync("")
        + pass
    """),
    "writes_in_place": Mutant(20, loses={"complete_names", "failing_rank", "one_at_a_time"}).edited("""
        Files are written under the checkpoint's own name from the start.

        - self.storage.make_folder(f"{folder}.tmp")
        + self.storage.make_folder(folder)

        - self.storage.write(f"{folder}.tmp/{snapshot.file}", snapshot.parts())
        - self.storage.sync(f"{folder}.tmp/{snapshot.file}")
        + self.storage.write(f"{folder}/{snapshot.file}", snapshot.parts())
        + self.storage.sync(f"{folder}/{snapshot.file}")

        - manifest = f"{folder}.tmp/{given.MANIFEST}"
        + manifest = f"{folder}/{given.MANIFEST}"

        - self.storage.sync(f"{folder}.tmp")
        - self.storage.rename(f"{folder}.tmp", folder)
        + self.storage.sync(folder)
    """),
    "clears_first": Mutant(21, loses={"crashes"}).edited("""
        Old checkpoints are removed before the new one is written.

        - folder: str = self.together(begin)[0]
        + def make_room() -> None:
        +     if self.rank == 0:
        +         for one in given.checkpoint_folders(self.storage)[self.keep_last_n - 1 :]:
        +             if one not in self.best_first(self.storage)[:1]:
        +                 self.storage.remove(one)
        +
        + self.together(make_room)
        + folder: str = self.together(begin)[0]
    """),
    "first_rank_only": Mutant(
        4,
        loses={
            "resumes",
            "other_world_size",
            "bytes_of_each_rank",
            "crashes",
            "skips",
            "failing_rank",
            "cleaning",
            "behind",
            "one_at_a_time",
        },
    ).edited("""
        Only the first rank writes, as if it had everything.

        - def write_own() -> dict[str, Any]:
        + def write_own() -> dict[str, Any]:
        +     if self.rank:
        +         return snapshot.describe()
    """),
    "forgets_random_states": Mutant(22, loses={"resumes"}).edited("""
        The generators are not in the checkpoint.

        - return self.write(step, self.snapshot(step, components, copy=False), metrics)
        + self.snapshot(step, components, copy=False)
        + snapshot = given.Snapshot(components, self.rank, self.ranks, self.format, copy=False)
        + return self.write(step, snapshot, metrics)
    """),
    "epoch_start": Mutant(19, loses={"resumes", "other_world_size"}).edited("""
        Training resumes at the start of the epoch: only what has tensors is loaded.

        - self.together(partial(self.read, folder, components))
        + some = {name: one for name, one in components.items() if not hasattr(one, "sample")}
        + self.together(partial(self.read, folder, some))
    """),
    "own_decisions": Mutant(23, loses={"decisions"}).edited("""
        Each rank looks at its own clock.

        - return bool(given.exchange(due, self.decision_group)[0])
        + return due
    """),
    "swallows_errors": Mutant(24, loses={"one_at_a_time"}).edited("""
        The error of a save behind training goes unnoticed.

        - writing.result()
        + writing.exception()
    """),
    "no_copy": Mutant(23, loses={"behind"}).edited("""
        The thread writes from the memory that training changes.

        - self.writing = given.start(self.write, step, self.snapshot(step, components, copy=True), metrics)
        + self.writing = given.start(self.write, step, self.snapshot(step, components, copy=False), metrics)
    """),
    "waits_for_the_write": Mutant(22, loses={"behind", "one_at_a_time"}).edited("""
        `save_async` saves at once.

        - self.writing = given.start(self.write, step, self.snapshot(step, components, copy=True), metrics)
        + self.write(step, self.snapshot(step, components, copy=True), metrics)
    """),
    "raises_alone": Mutant(20, loses={"skips", "failing_rank", "one_at_a_time"}).edited("""
        A rank that fails raises its error, and the others wait for it.

        - problem = given.describe(error)
        + raise CheckpointError(f"rank {self.rank}: {given.describe(error)}") from error
    """),
    "deletes_the_good": Mutant(23, loses={"cleaning"}).edited("""
        The newest ones are kept, whether they can be loaded or not.

        - if not any(one == self.newest or given.is_loadable(self.storage, one) for one in keep):
        -     old = []
        + pass
    """),
    "forgets_the_best": Mutant(23, loses={"cleaning"}).edited("""
        The best checkpoint goes as soon as it is old.

        - keep = complete[: self.keep_last_n] + self.best_first(self.storage)[:1]
        + keep = complete[: self.keep_last_n]
    """),
    "believes_the_newest": Mutant(21, loses={"skips", "cleaning"}).edited("""
        Only the newest checkpoint is tried.

        - for folder in self.together(lambda: order(self.storage) if self.rank == 0 else None)[0]:
        + for folder in self.together(lambda: order(self.storage) if self.rank == 0 else None)[0][:1]:
    """),
}
