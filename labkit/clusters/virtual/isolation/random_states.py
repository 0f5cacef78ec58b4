"""Random numbers: every rank draws from generators of its own, as a process does.

`random` and `numpy.random` have a generator for each rank. torch has one default generator for the process: its state
is exchanged when another rank than the last one draws from it, and never when the baton merely changes hands.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy.random
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.clusters.virtual.isolation.current import Rank, here

# as in random.py itself, whose functions are the methods of one hidden generator
_RANDOM = (
    "betavariate", "choice", "choices", "expovariate", "gammavariate", "gauss", "getrandbits", "getstate",
    "lognormvariate", "normalvariate", "paretovariate", "randbytes", "randint", "random", "randrange", "sample", "seed",
    "setstate", "shuffle", "triangular", "uniform", "vonmisesvariate", "weibullvariate",
)  # fmt: skip

_states: dict[int, Tensor] = {}
"""Of torch's default generator, for ranks that have drawn from it, but for the last one that did."""
_owner = -1


def separate() -> None:
    """From now on what this process draws comes from the generators of the rank whose thread draws."""
    vars(torch.random)["default_generator"] = _DefaultGenerator()  # what torch.manual_seed and its like use
    for name in _RANDOM:
        setattr(random, name, _of_rank(name, getattr(random, name), lambda rank: rank.random))
    for name in dir(numpy.random.mtrand._rand):  # numpy's own hidden generator
        function = getattr(numpy.random, name, None)
        if getattr(function, "__self__", None) is numpy.random.mtrand._rand:
            setattr(numpy.random, name, _of_rank(name, function, lambda rank: rank.numpy_random))
    # these are functions of their own in numpy
    for name, method in (("seed", "seed"), ("sample", "random_sample"), ("ranf", "random_sample")):
        setattr(numpy.random, name, _of_rank(method, getattr(numpy.random, name), lambda rank: rank.numpy_random))


def seeded(rank: int) -> tuple[random.Random, numpy.random.RandomState]:
    """Generators for a rank that has not seeded any: others on each rank, the same in every run."""
    generator = _unseeded(rank)
    return generator, numpy.random.RandomState(generator.getrandbits(32))


def seed_process(rank: int) -> None:
    """The generators of this process, which hosts that rank alone, begin as those of a rank that has not seeded any."""
    random.seed(_text(rank))
    numpy.random.seed(random.getrandbits(32))
    # torch.manual_seed would do the same for GPUs, and keep the whole stack in case there is one some day
    torch.default_generator.manual_seed(torch_seed(rank))


def torch_seed(rank: int) -> int:
    """What torch's default generator of a rank begins with: another seed in every process, so on every rank."""
    generator = _unseeded(rank)
    generator.getrandbits(32)  # numpy's
    return generator.getrandbits(63)


def claim(rank: int) -> None:
    """`rank` is about to draw from torch's default generator, or to look at it: give it the state of that rank."""
    global _owner
    if rank != _owner:
        generator = torch._C.default_generator
        _states[_owner] = generator.get_state()
        if rank in _states:
            generator.set_state(_states.pop(rank))
        else:
            generator.manual_seed(torch_seed(rank))
        _owner = rank


class Claiming(TorchDispatchMode):
    """Claims torch's default generator for a rank whenever an operator draws from it, where nothing else is counted."""

    def __init__(self, rank: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self._rank = rank

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in function.tags:
            claim(self._rank)
        return function(*args, **(kwargs or {}))


class _DefaultGenerator:
    """What torch.random's functions take for the default generator."""

    def __getattr__(self, name: str) -> Any:
        if here.rank is not None:
            claim(here.rank.number)
        return getattr(torch._C.default_generator, name)


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
