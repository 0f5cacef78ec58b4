"""Mutants of data_loader: what is wrong in each, what it earns, and the checks that it loses."""

from autograder.mutants import Mutant

REPEATS = {"once", "one_order", "resume", "resume_elsewhere", "ends"}
"""What is lost where samples come twice."""

MUTANTS = {
    "calls_the_library": Mutant(
        9, loses=REPEATS | {"no_messages", "epochs", "unshuffled", "share_in_memory", "ahead"}
    ).edited("""
        DistributedSampler does the work, and repeats samples where the size does not divide; no thread reads ahead.

        - from torch.utils.data import Sampler
        + from torch.utils.data import DistributedSampler, Sampler

        - end = self._begin + self._left()
        - mine = self._order()[self._begin + self.rank : end : self.num_replicas]
        - for index in mine.tolist():
        + library = DistributedSampler(
        +     range(self.dataset_size), self.num_replicas, self.rank, self.shuffle, self.seed, self.drop_last
        + )
        + library.set_epoch(self.epoch)
        + for index in list(library)[self._begin // self.num_replicas :]:

          copies = DeviceCopies(self.device)
        + for batch in batches:
        +     yield copies.make(batch)
        + return
    """),
    "each_rank_its_own_order": Mutant(
        11, loses=REPEATS - {"ends"} | {"no_messages", "epochs", "mixed", "drop_last"}
    ).edited("""
        The seed depends on the rank, as it should for dropout.

        - generator = torch.Generator().manual_seed(self.seed + self.epoch)
        + generator = torch.Generator().manual_seed(self.seed + self.epoch + 1000 * self.rank)
    """),
    "deals_out_blocks": Mutant(
        16, loses={"one_order", "no_messages", "unshuffled", "resume", "resume_elsewhere"}
    ).edited("""
        Rank r gets the r-th block of what is left, not every num_replicas-th sample.

        - end = self._begin + self._left()
        - mine = self._order()[self._begin + self.rank : end : self.num_replicas]
        + sizes = [len(range(rank, self._left(), self.num_replicas)) for rank in range(self.rank)]
        + first = self._begin + sum(sizes)
        + mine = self._order()[first : first + len(self)]
    """),
    "shuffles_its_own_part": Mutant(19, loses={"one_order", "mixed", "resume_elsewhere"}).edited("""
        Each rank has the same samples in every epoch, in another order.

        - if not self.shuffle:
        -     return torch.arange(self.dataset_size, device="cpu")
        - generator = torch.Generator().manual_seed(self.seed + self.epoch)
        - return torch.randperm(self.dataset_size, generator=generator, device="cpu")
        + order = torch.arange(self.dataset_size, device="cpu")
        + if self.shuffle:
        +     generator = torch.Generator().manual_seed(self.seed + self.epoch)
        +     for rank in range(self.num_replicas):
        +         mine = order[rank :: self.num_replicas].clone()
        +         order[rank :: self.num_replicas] = mine[torch.randperm(len(mine), generator=generator)]
        + return order
    """),
    "set_epoch_loses_the_place": Mutant(19, loses={"no_messages", "resume", "resume_elsewhere"}).edited("""
        set_epoch begins the epoch anew, also when it is the one that was loaded.

        - if epoch != self.epoch:
        -     self.epoch = epoch
        -     self._begin = self._given = self._resume_at = 0
        + self.epoch = epoch
        + self._begin = self._given = self._resume_at = 0
    """),
    "forgets_the_epoch": Mutant(20, loses={"epochs", "mixed", "drop_last"}).edited("""
        Every epoch has the order of the first one.

        - generator = torch.Generator().manual_seed(self.seed + self.epoch)
        + generator = torch.Generator().manual_seed(self.seed)
    """),
    "every_epoch_is_cut_short": Mutant(21, loses={"resume", "ends"}).edited("""
        The place that was loaded counts for all epochs that follow.

        - self._begin, self._resume_at = self._resume_at, 0
        + self._begin = self._resume_at

        - if epoch != self.epoch:
        -     self.epoch = epoch
        -     self._begin = self._given = self._resume_at = 0
        + self.epoch, self._given = epoch, 0
    """),
    # right on as many ranks as before
    "counts_its_own_samples": Mutant(22, loses={"resume_elsewhere"}).edited("""
        The state counts what one rank has had: right on as many ranks, lost on others.

        - left = self.dataset_size - self._begin
        + left = max(0, self.dataset_size - self._begin)

        - dealt = rounds * self.num_replicas
        - position = self._begin + dealt if dealt < self._left() else self.dataset_size
        + position = self._begin // self.num_replicas + rounds

        - self._begin = self._resume_at = state["position"]
        + self._begin = self._resume_at = state["position"] * self.num_replicas
    """),
    # what is sent lies in memory, too
    "asks_rank_0": Mutant(22, loses={"no_messages", "share_in_memory"}).edited("""
        Rank 0 draws the order and sends it to all others.

          import torch
        + import torch.distributed as dist

        - return torch.randperm(self.dataset_size, generator=generator, device="cpu")
        + order = torch.randperm(self.dataset_size, generator=generator, device="cpu")
        + dist.broadcast(order, 0)
        + return order
    """),
    "seeds_for_everybody": Mutant(23, loses={"undisturbed"}).edited("""
        The order is drawn from the generator that the rank's own code draws from.

        - generator = torch.Generator().manual_seed(self.seed + self.epoch)
        - return torch.randperm(self.dataset_size, generator=generator, device="cpu")
        + torch.manual_seed(self.seed + self.epoch)
        + return torch.randperm(self.dataset_size, device="cpu")
    """),
    "makes_numbers_of_all": Mutant(23, loses={"share_in_memory"}).edited("""
        The whole order becomes a list on every rank.

        - mine = self._order()[self._begin + self.rank : end : self.num_replicas]
        - for index in mine.tolist():
        + mine = self._order().tolist()[self._begin + self.rank : end : self.num_replicas]
        + for index in mine:
    """),
    "checks_nothing": Mutant(23, loses={"bad_arguments"}).edited("""
        Bad arguments fail somewhere on the way, or not at all.

        - for name, value in self._identity().items():
        -     if state.get(name) != value:
        -         raise ValueError(f"state must have {name}={value} as this sampler has, got {state.get(name)!r}")

        - require_iterable("loader", loader)

        - from labkit.course.phase1_data_parallel.data_loader.given.arguments import (
        -     known_device,
        -     require_integer,
        -     require_iterable,
        - )
        + from labkit.course.phase1_data_parallel.data_loader.given.arguments import known_device
        +
        +
        + def require_integer(name: str, value: Any, *, at_least: int, below: int | None = None) -> None:
        +     pass
    """),
    # what is in its buffer when the loader breaks is lost
    "reads_ahead_without_a_thread": Mutant(22, loses={"ahead", "errors"}).edited("""
        A buffer is filled before a batch is handed over: the reader still waits for the loader.

          copies = DeviceCopies(self.device)
        + buffer: list[Batch] = []
        + for batch in batches:
        +     buffer.append(copies.make(batch))
        +     if len(buffer) > self.prefetch_factor:
        +         yield buffer.pop(0)
        + yield from buffer
        + return
    """),
    "reads_without_end": Mutant(23, loses={"bounded"}).edited("""
        The thread never waits: the whole data set comes to lie in memory.

        - while room.acquire() and not leaving.is_set():
        + while not leaving.is_set():
    """),
    "reads_one_too_many": Mutant(23, loses={"bounded"}).edited("""
        Batches wait in a queue of limited length, and one more in the hands of the thread that waits for room in it.

        - while room.acquire() and not leaving.is_set():
        -     ready.put((copies.make(next(batches)), None))
        + while not leaving.is_set():
        +     batch = copies.make(next(batches))
        +     room.acquire()
        +     ready.put((batch, None))
    """),
    "takes_0_for_none": Mutant(23, loses={"read_ahead"}).edited("""
        `taken or ...`: a loader that has used nothing yet counts as one that has used all that it read.

        - rounds = self._given if taken is None else taken
        + rounds = taken or self._given
    """),
    "forgets_dicts": Mutant(23, loses={"batches"}).edited("""
        Copies tensors, and lists and tuples of them; those in a dict stay where they are.

        - from labkit.course.phase1_data_parallel.data_loader.given.device_copies import DeviceCopies
        + from labkit.course.phase1_data_parallel.data_loader.given import device_copies

        + class DeviceCopies(device_copies.DeviceCopies):
        +     def make(self, batch: Any) -> Any:
        +         if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        +             return type(batch)(*map(self.make, batch))
        +         if isinstance(batch, (tuple, list)):
        +             return type(batch)(map(self.make, batch))
        +         return super().make(batch) if isinstance(batch, Tensor) else batch
        +
        +
          class PrefetchLoader(Generic[Batch]):
    """),
    "swallows_errors": Mutant(23, loses={"errors"}).edited("""
        An error in the thread looks like the end of the epoch.

        - if isinstance(error, StopIteration):
        -     return
          if error is not None:
        -     raise error
        +     return
    """),
    "leaves_its_thread": Mutant(23, loses={"leaves"}).edited("""
        Nobody tells the thread that no more batches are wanted.

        - leaving.set()
        - room.release()
        - thread.join()
        + pass
    """),
}
