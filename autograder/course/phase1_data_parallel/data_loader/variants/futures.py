"""Right: the sampler goes through the rounds one by one, and the loader prefetches with futures."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils.data import Sampler

__all__ = ["PrefetchLoader", "ShardedSampler"]


class ShardedSampler(Sampler):
    """The position is where the next sample of the order comes from; a rank looks at its own part of each round."""

    def __init__(self, dataset_size, num_replicas, rank, shuffle=True, seed=0, drop_last=False):
        for name, value, least in (
            ("dataset_size", dataset_size, 0),
            ("num_replicas", num_replicas, 1),
            ("rank", rank, 0),
            ("seed", seed, 0),
        ):
            require(name, value, least)
        require("rank", rank, 0, num_replicas)
        self.size, self.count, self.rank, self.drop_last = dataset_size, num_replicas, rank, drop_last
        self.kind = {"dataset_size": dataset_size, "shuffle": shuffle, "seed": seed}
        self.epoch = self.place = self.start = 0
        self.loaded = False

    def rounds(self, start):
        full, more = divmod(self.size - start, self.count)
        return full if self.drop_last or not more else full + 1

    def __len__(self):
        return len(
            range(self.start + self.rank, min(self.size, self.start + self.rounds(self.start) * self.count), self.count)
        )

    def __iter__(self):
        self.start = self.place = self.start if self.loaded else 0
        self.loaded = False
        order = range(self.size)
        if self.kind["shuffle"]:
            generator = torch.Generator().manual_seed(self.kind["seed"] * 1_000_003 + self.epoch)
            order = torch.randperm(self.size, generator=generator).numpy()
        for turn in range(self.rounds(self.start)):
            at = self.start + turn * self.count
            self.place = at + self.count
            if at + self.rank < self.size:
                yield int(order[at + self.rank])
        self.place = self.size

    def set_epoch(self, epoch):
        require("epoch", epoch, 0)
        if epoch != self.epoch:
            self.epoch, self.place, self.start, self.loaded = epoch, 0, 0, False

    def state_dict(self, taken=None):
        place = self.place if taken is None else self.start + taken * self.count
        end = self.start + self.rounds(self.start) * self.count
        return {**self.kind, "epoch": self.epoch, "place": self.size if place >= end else place}

    def load_state_dict(self, state):
        for name, value in self.kind.items():
            if state.get(name) != value:
                raise ValueError(f"the state has {name}={state.get(name)}, this sampler {value}")
        self.epoch, self.place = state["epoch"], state["place"]
        self.start, self.loaded = self.place, True


class PrefetchLoader:
    def __init__(self, loader, device, prefetch_factor=2):
        require("prefetch_factor", prefetch_factor, 1)
        self.loader, self.device, self.prefetch_factor = loader, device_of(device), prefetch_factor

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        batches, end = iter(self.loader), object()

        def read():
            batch = next(batches, end)
            return batch if batch is end else moved(batch, self.device)

        pool = ThreadPoolExecutor(max_workers=1)
        try:
            ready = deque(pool.submit(read) for _ in range(self.prefetch_factor))
            while (batch := ready.popleft().result()) is not end:
                ready.append(pool.submit(read))
                yield batch
        finally:
            pool.shutdown(cancel_futures=True)


def moved(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: moved(value, device) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(moved(value, device) for value in batch)
    return batch


def device_of(device):
    try:
        return torch.device(device)
    except RuntimeError:
        raise ValueError(f"device is not one that torch knows: {device!r}") from None


def require(name, value, at_least, below=float("inf")):
    if not at_least <= value < below:
        raise ValueError(f"{name} must be from {at_least} and below {below}, got {value}")
