"""Right: shuffles with numpy, in another order than torch; permits to read are in one queue, batches in another."""

import threading
from queue import SimpleQueue

import numpy
import torch
from torch.utils.data import Sampler

__all__ = ["PrefetchLoader", "ShardedSampler"]


class ShardedSampler(Sampler):
    def __init__(self, dataset_size, num_replicas, rank, shuffle=True, seed=0, drop_last=False):
        require("dataset_size", dataset_size, 0)
        require("num_replicas", num_replicas, 1)
        require("rank", rank, 0, num_replicas)
        require("seed", seed, 0)
        self.dataset_size, self.num_replicas, self.rank = dataset_size, num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = self.begin = self.given = self.resume_at = 0

    def left(self):
        left = self.dataset_size - self.begin
        return left - left % self.num_replicas if self.drop_last else left

    def __len__(self):
        return len(range(self.rank, self.left(), self.num_replicas))

    def order(self):
        if not self.shuffle:
            return numpy.arange(self.dataset_size)
        return numpy.random.default_rng([self.seed, self.epoch]).permutation(self.dataset_size)

    def __iter__(self):
        self.begin, self.resume_at = self.resume_at, 0
        self.given = 0
        for index in self.order()[self.begin : self.begin + self.left()][self.rank :: self.num_replicas].tolist():
            self.given += 1
            yield index
        self.given = -(-self.left() // self.num_replicas)

    def set_epoch(self, epoch):
        require("epoch", epoch, 0)
        if epoch != self.epoch:
            self.epoch = epoch
            self.begin = self.given = self.resume_at = 0

    def identity(self):
        return {"dataset_size": self.dataset_size, "shuffle": self.shuffle, "seed": self.seed}

    def state_dict(self, taken=None):
        dealt = (self.given if taken is None else taken) * self.num_replicas
        position = self.begin + dealt if dealt < self.left() else self.dataset_size
        return {"epoch": self.epoch, "position": position, **self.identity()}

    def load_state_dict(self, state):
        for name, value in self.identity().items():
            if state[name] != value:
                raise ValueError(f"{name} is {value} here, got {state[name]}")
        self.epoch, self.begin, self.given = state["epoch"], state["position"], 0
        self.resume_at = self.begin


class PrefetchLoader:
    def __init__(self, loader, device, prefetch_factor=2):
        require("prefetch_factor", prefetch_factor, 1)
        self.loader, self.device, self.prefetch_factor = loader, device_of(device), prefetch_factor

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        permits, ready, leaving = SimpleQueue(), SimpleQueue(), threading.Event()
        thread = threading.Thread(target=self.read, args=(iter(self.loader), permits, ready, leaving), daemon=True)
        thread.start()
        for _ in range(self.prefetch_factor):
            permits.put(None)
        try:
            while True:
                kind, value = ready.get()
                if kind == "end":
                    return
                if kind == "error":
                    raise value
                permits.put(None)
                yield value
        finally:
            leaving.set()
            permits.put(None)
            thread.join()

    def read(self, batches, permits, ready, leaving):
        try:
            while True:
                permits.get()
                if leaving.is_set():
                    return
                ready.put(("batch", moved(next(batches), self.device)))
        except StopIteration:
            ready.put(("end", None))
        except Exception as error:
            ready.put(("error", error))


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
