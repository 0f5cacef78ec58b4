"""The samples of each global batch, dealt out to any number of ranks: the same batches at every world size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from labkit.course.arguments import integer, require


class GlobalBatchSampler(Sampler[list[int]]):
    """Indices of one rank's part of each global batch: the `batch_sampler` of a DataLoader.

    An epoch is one order of all samples, drawn from `seed` and the epoch's number. Each `global_batch_size` samples of
    it are a global batch, whose sample i goes to rank i % num_replicas: shares differ by at most one sample, and the
    batches do not depend on the number of ranks. drop_last: leave out the last samples that fill no global batch.
    Raises ValueError when an argument cannot be used, or when a rank would have no sample of some batch.
    """

    def __init__(
        self,
        dataset_size: int,
        global_batch_size: int,
        num_replicas: int,
        rank: int,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        require("dataset_size", dataset_size, integer(at_least=1))
        require("global_batch_size", global_batch_size, integer(at_least=1, below=dataset_size + 1))
        require("num_replicas", num_replicas, integer(at_least=1, below=global_batch_size + 1))
        require("rank", rank, integer(at_least=0, below=num_replicas))
        require("seed", seed, integer(at_least=0))
        rest = 0 if drop_last else dataset_size % global_batch_size
        if 0 < rest < num_replicas:
            raise ValueError(
                f"num_replicas must be at most the {rest} samples of the last global batch, got {num_replicas}; "
                "drop_last=True leaves that batch out"
            )
        self.dataset_size, self.global_batch_size = dataset_size, global_batch_size
        self.num_replicas, self.rank, self.seed = num_replicas, rank, seed
        self.samples_per_epoch = dataset_size - dataset_size % global_batch_size if drop_last else dataset_size
        self.epoch, self.position = 0, 0
        """Start of the next iteration: the epoch, and the number of samples of its order that are done."""
        self.loaded_global_batch_size: int | None = None
        """Global batch size of the training whose state was loaded; None before."""

    def __len__(self) -> int:
        """Return the number of global batches that are left in this epoch."""
        return -(-(self.samples_per_epoch - self.position) // self.global_batch_size)

    def order(self) -> Tensor:
        """Return all samples, (dataset_size,) int64, in the order of this epoch: the same on every rank and machine."""
        return torch.randperm(self.dataset_size, generator=torch.Generator().manual_seed(self.seed + self.epoch))

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's part of each global batch of the epoch, from `position` on."""
        order = self.order()[: self.samples_per_epoch]
        for begin in range(self.position, self.samples_per_epoch, self.global_batch_size):
            yield order[begin : begin + self.global_batch_size][self.rank :: self.num_replicas].tolist()

    def set_epoch(self, epoch: int) -> None:
        """Use that epoch's order from its beginning; the position is kept if that epoch is already under way."""
        require("epoch", epoch, integer(at_least=0))
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    def advance(self) -> None:
        """Count one more global batch as done, or the rest of the epoch."""
        self.position = min(self.position + self.global_batch_size, self.samples_per_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, plain data, the same on every rank."""
        return {"epoch": self.epoch, "position": self.position, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue there, on any number of ranks, with `global_batch_size` samples a batch, as given to this sampler.

        Raises ValueError when the state belongs to another data set or another order, and when a rank would have no
        sample of this epoch's last batch.
        """
        for name in ("dataset_size", "seed"):
            if state.get(name) != getattr(self, name):
                raise ValueError(f"state must have {name}={getattr(self, name)}, got {state.get(name)!r}")
        require("epoch", state.get("epoch"), integer(at_least=0))
        require("position", state.get("position"), integer(at_least=0, below=self.dataset_size + 1))
        require("global_batch_size", state.get("global_batch_size"), integer(at_least=1))
        rest = (self.samples_per_epoch - state["position"]) % self.global_batch_size
        if 0 < rest < self.num_replicas:
            raise ValueError(
                f"global_batch_size must leave each of the {self.num_replicas} ranks a sample, got "
                f"{self.global_batch_size}: epoch {state['epoch']} goes on after {state['position']} of "
                f"{self.samples_per_epoch} samples, and its last batch has {rest}"
            )
        self.epoch, self.position = state["epoch"], state["position"]
        self.loaded_global_batch_size = state["global_batch_size"]

    def _identity(self) -> dict[str, Any]:
        return {"dataset_size": self.dataset_size, "seed": self.seed, "global_batch_size": self.global_batch_size}
