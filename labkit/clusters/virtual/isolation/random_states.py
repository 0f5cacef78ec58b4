"""Random numbers: every rank draws from its own generators, as a process does.

`random` and `numpy.random` have a generator for each rank. torch has one default generator per process, and a state of
it for each rank. Where operators are counted, the state is swapped when a rank other than the last one draws; elsewhere
whenever ranks switch, which costs less than to look at each operator.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy.random
import torch
from torch import Tensor

from labkit.clusters.virtual.isolation.current import Rank, here
from labkit.torch_versions.dispatch import UnguardedDispatchMode

# as in random.py itself, whose functions are methods of one hidden generator
_RANDOM = (
    "betavariate", "choice", "choices", "expovariate", "gammavariate", "gauss", "getrandbits", "getstate",
    "lognormvariate", "normalvariate", "paretovariate", "randbytes", "randint", "random", "randrange", "sample", "seed",
    "setstate", "shuffle", "triangular", "uniform", "vonmisesvariate", "weibullvariate",
)  # fmt: skip

_states: dict[int, Tensor] = {}
"""States of torch's default generator for ranks that have drawn from it, except for the last one that did."""
_owner = -1


def separate() -> None:
    """Make every draw in this process use the generators of the rank whose thread draws."""
    vars(torch.random)["default_generator"] = _DefaultGenerator()  # used by torch.manual_seed and the like
    for name in _RANDOM:
        setattr(random, name, _of_rank(name, getattr(random, name), lambda rank: rank.random))
    for name in dir(numpy.random.mtrand._rand):  # numpy's own hidden generator
        function = getattr(numpy.random, name, None)
        if getattr(function, "__self__", None) is numpy.random.mtrand._rand:
            setattr(numpy.random, name, _of_rank(name, function, lambda rank: rank.numpy_random))
    # separate functions in numpy
    for name, method in (("seed", "seed"), ("sample", "random_sample"), ("ranf", "random_sample")):
        setattr(numpy.random, name, _of_rank(method, getattr(numpy.random, name), lambda rank: rank.numpy_random))


def seeded(rank: int) -> tuple[random.Random, numpy.random.RandomState]:
    """Generators for a rank that has seeded none: different on each rank, the same in every run."""
    generator = _unseeded(rank)
    return generator, numpy.random.RandomState(generator.getrandbits(32))


def seed_process(rank: int) -> None:
    """Seed this process, which hosts only that rank, as a rank that has seeded no generator."""
    random.seed(_text(rank))
    numpy.random.seed(random.getrandbits(32))
    # torch.manual_seed would also seed GPUs, and keep the whole stack in case one appears later
    torch.default_generator.manual_seed(torch_seed(rank))


def torch_seed(rank: int) -> int:
    """Initial seed of a rank's default torch generator: a different one in every process, so on every rank."""
    generator = _unseeded(rank)
    generator.getrandbits(32)  # the draw for numpy
    return generator.getrandbits(63)


def claim(rank: int) -> None:
    """Load the state of `rank`, which is about to use torch's default generator."""
    global _owner
    if rank != _owner:
        generator = torch.default_generator
        _states[_owner] = generator.get_state()
        if rank in _states:
            generator.set_state(_states.pop(rank))
        else:
            generator.manual_seed(torch_seed(rank))
        _owner = rank


class GeneratorClaimer(UnguardedDispatchMode):
    """Claims torch's default generator for an operator that draws from it, in a thread that a rank has started."""

    def __init__(self, rank: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self._rank = rank

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded not in function.tags:
            return function(*args, **(kwargs or {}))
        before = _owner  # the rank whose turn it is; it may have no mode that claims
        claim(self._rank)
        try:
            return function(*args, **(kwargs or {}))
        finally:
            claim(before)


class _DefaultGenerator:
    """Replacement for the default generator in torch.random's functions."""

    def __getattr__(self, name: str) -> Any:
        if here.rank is not None:
            claim(here.rank.number)
        return getattr(torch.default_generator, name)


def _unseeded(rank: int) -> random.Random:
    return random.Random(_text(rank))


def _text(rank: int) -> str:
    return f"rank {rank}"


def _of_rank(name: str, shared: Any, generator: Callable[[Rank], Any]) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        rank = here.rank
        if rank is None:
            return shared(*args, **kwargs)
        return getattr(generator(rank), name)(*args, **kwargs)

    draw.__name__ = draw.__qualname__ = name
    draw.__doc__ = shared.__doc__
    return draw
