"""Variants of checkpointing: other right solutions."""

from autograder.mutants import Variant

VARIANTS = {
    "one_thread": Variant().edited("""
        Right: files are synced by the first rank, one thread stays for all saves, and the manifest is checked once more.

        Ranks write to one storage, so the first one can sync all files before it renames the folder. Ranks exchange times
        in place of decisions; the first rank's counts, as in the solution.

        + from concurrent.futures import ThreadPoolExecutor
          from functools import partial

        - due = time.monotonic() - self.last_save_seconds >= self.interval_seconds and step != self.last_step
        - return bool(given.exchange(due, self.decision_group)[0])
        + answers = given.exchange(time.monotonic() - self.last_save_seconds, self.decision_group)
        + return step != self.last_step and answers[0] >= self.interval_seconds

        - if not any(one == self.newest or given.is_loadable(self.storage, one) for one in keep):
        -     old = []
        + old = old if any(given.is_loadable(self.storage, one) for one in keep) else []

        - self.storage.sync(f"{folder}.tmp/{snapshot.file}")

        - self.storage.sync(manifest)
        + for name in self.storage.list(f"{folder}.tmp"):
        +     self.storage.sync(f"{folder}.tmp/{name}")
          self.storage.sync(f"{folder}.tmp")
        + if not given.is_complete(self.storage, f"{folder}.tmp"):
        +     raise CheckpointError(f"{folder} is torn while it is written")

        - self.writing = given.start(self.write, step, self.snapshot(step, components, copy=True), metrics)
        + snapshot = self.snapshot(step, components, copy=True)
        + if not hasattr(self, "thread"):
        +     self.thread = ThreadPoolExecutor(1)
        + self.writing = self.thread.submit(self.write, step, snapshot, metrics)
    """),
}
