"""Exercise 03's sampler and loader on a rank, for its checks.

leg(size, num_replicas, rank, epoch, ...)       a part of an epoch, from its start or from a state
disturbed(size, num_replicas, rank, ...)        an epoch beside random numbers of the rank's own
held(factor, batches, ...)                      a loader that is left while its first batch is held
"""

from __future__ import annotations

import itertools
import json
import random
import threading
from typing import Any

import numpy
import torch


def leg(
    size: int,
    num_replicas: int,
    rank: int,
    epoch: int,
    steps: int | None = None,
    state: str | None = None,
    taken: int | None = None,
    **options: Any,
) -> list[Any]:
    """On a rank: return the first samples of an epoch, or of what is left of it after `state`; the state after them, as
    saved to a file; and the sampler's length before them.

    steps: how many samples; None: all. taken: how many of them count in the state; None: all.
    """
    from labkit.exercises import data_loader

    sampler = data_loader.ShardedSampler(size, num_replicas, rank, **options)
    if state is not None:
        sampler.load_state_dict(json.loads(state))
    sampler.set_epoch(epoch)
    length = len(sampler)
    dealing = iter(sampler)
    samples = [int(index) for index in itertools.islice(dealing, steps)]
    after = sampler.state_dict() if taken is None else sampler.state_dict(taken=taken)
    return [samples, json.dumps(after, sort_keys=True), length]


def in_turn(shares: list[list[int]]) -> list[int]:
    """Interleave the ranks' samples, one from each in turn."""
    return [share[i] for i in range(len(shares[0])) for share in shares if i < len(share)]


def disturbed(size: int, num_replicas: int, rank: int, epoch: int = 0, seed: int = 0) -> list[Any]:
    """On a rank: return its samples, where its random state differs from the others', and whether it is unchanged."""
    from labkit.exercises import data_loader

    def draws() -> list[float]:
        return [random.random(), float(numpy.random.random()), torch.rand(1).item()]

    def seeded() -> None:
        random.seed(rank)
        numpy.random.seed(rank)
        torch.manual_seed(rank)
        draws()

    seeded()
    wanted = draws()
    seeded()
    sampler = data_loader.ShardedSampler(size, num_replicas, rank, seed=seed)
    sampler.set_epoch(epoch)
    samples = [int(index) for index in sampler]
    return [samples, draws() == wanted]


def held(factor: int, batches: int, patience: float = 0.0) -> dict[str, Any]:
    """On a rank: record what a loader reads and when; its first batch is held, then the iteration is abandoned.

    patience: seconds that the loader waits, before the last batch that may be ready, for the first one to be held.
    """
    from labkit.exercises import data_loader

    holding, enough = threading.Event(), threading.Event()
    read: list[bool] = []

    class Loader:
        def __iter__(self) -> Any:
            for number in range(batches):
                if number == factor:
                    # reading on before the first batch is handed over is too early
                    holding.wait(patience)
                read.append(holding.is_set())
                if len(read) == 1 + factor:
                    enough.set()
                yield torch.tensor(number)

    before = threading.enumerate()
    loader = data_loader.PrefetchLoader(Loader(), "cpu", factor)
    found: dict[str, Any] = {"unasked": len(read)}
    for _ in loader:
        holding.set()
        enough.wait(5)
        threading.Event().wait(0.1)  # time for a loader that keeps reading
        found["ahead"], found["while_held"] = len(read) - 1, read[-1]
        break
    started = [thread for thread in threading.enumerate() if thread not in before]
    for thread in started:
        thread.join(5)
    found["threads"] = sum(thread.is_alive() for thread in started)
    at_end = len(read)
    threading.Event().wait(0.1)
    return {**found, "later": len(read) - at_end}
