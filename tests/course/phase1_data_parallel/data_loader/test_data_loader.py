"""The sampler compared with the library's, and training that stops anywhere and resumes on any number of ranks."""

from __future__ import annotations

import itertools
import json
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from labkit import catalogue, exercises

EXERCISE = catalogue.Exercise("phase1_data_parallel/data_loader")
SOLUTION: Any = exercises.load(EXERCISE, EXERCISE.paths["solution"].read_text())

counts = st.integers(1, 9)


@settings(max_examples=100)
@given(
    share=st.integers(0, 40),
    num_replicas=counts,
    more=st.integers(0, 8),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**31),
    epoch=st.integers(0, 1000),
)
def test_the_order_is_the_library_s(
    share: int, num_replicas: int, more: int, shuffle: bool, seed: int, epoch: int
) -> None:
    size = share * num_replicas + more % num_replicas
    for rank in range(num_replicas):
        # where the size does not divide, the library repeats samples: the whole rounds agree
        library = DistributedSampler(range(size), num_replicas, rank, shuffle, seed, drop_last=False)
        ours = SOLUTION.ShardedSampler(size, num_replicas, rank, shuffle, seed, drop_last=True)
        for sampler in (library, ours):
            sampler.set_epoch(epoch)
        assert list(ours) == list(library)[:share]


@settings(max_examples=100)
@given(
    size=st.integers(0, 60),
    legs=st.lists(st.tuples(counts, st.integers(0, 6)), max_size=5),
    last=counts,
    shuffle=st.booleans(),
    epoch=st.integers(0, 9),
)
def test_nothing_is_lost_and_nothing_repeated_wherever_it_stops(
    size: int, legs: list[tuple[int, int]], last: int, shuffle: bool, epoch: int
) -> None:
    seen: list[int] = []
    state = ""
    for num_replicas, steps in (*legs, (last, None)):
        states = []
        for rank in range(num_replicas):
            sampler = SOLUTION.ShardedSampler(size, num_replicas, rank, shuffle)
            if state:
                sampler.load_state_dict(json.loads(state))
            sampler.set_epoch(epoch)
            share, samples = len(sampler), iter(sampler)
            taken = list(itertools.islice(samples, steps))
            assert len(taken) == (share if steps is None else min(share, steps))
            seen += taken
            states.append(json.dumps(sampler.state_dict()))
        state = states[0]
    assert sorted(seen) == list(range(size))
    assert json.loads(state)["position"] == size


def test_a_data_loader_that_reads_ahead_stops_where_training_is() -> None:
    dataset = TensorDataset(torch.arange(40))

    def prefetched(sampler: Any) -> Any:
        return SOLUTION.PrefetchLoader(DataLoader(dataset, batch_size=3, sampler=sampler), "cpu", prefetch_factor=4)

    seen = []
    samplers = [SOLUTION.ShardedSampler(40, 2, rank) for rank in range(2)]
    for sampler in samplers:
        for (batch,) in itertools.islice(prefetched(sampler), 2):
            seen += batch.tolist()
    state = samplers[0].state_dict(taken=6)
    assert state["position"] == 12 < samplers[0].state_dict()["position"]
    for rank in range(5):
        sampler = SOLUTION.ShardedSampler(40, 5, rank)
        sampler.load_state_dict(state)
        seen += [index for (batch,) in prefetched(sampler) for index in batch.tolist()]
    assert sorted(seen) == list(range(40))


def test_a_default_device_changes_nothing() -> None:
    wanted = list(SOLUTION.ShardedSampler(10, 2, 1))
    with torch.device("meta"):
        assert list(SOLUTION.ShardedSampler(10, 2, 1)) == wanted
