"""Ranks on which a check runs the learner's functions, and the submission that it takes them from.

    run = ranks(8, inter_node="ethernet-10g").call(submission.ring_all_reduce, lambda rank: torch.full((4096,), rank))
    run.values[3], run.trace.bytes_sent(rank=0)

`submission.ring_all_reduce` is a reference: nothing of the learner's is loaded in the process that runs the rubric.
Inputs are a function of the rank, or a list with an item for each. An item is a tensor, or several arguments,
`Args(tensor, op=reduce_op("MAX"), group=group_of([0, 2]))`, or None where a rank makes no call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from labkit.clusters import Cluster, Job, Run
from labkit.clusters.arguments import marked_group
from labkit.clusters.local import local
from labkit.clusters.virtual import virtual
from labkit.exercises import Exercise


class Args:
    """Arguments of one rank's call: `Args(shard, group=group_of([0, 2]))`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs


Inputs = Callable[[int], Args | Tensor | None] | Sequence[Args | Tensor | None]
"""What each rank's call is given."""


@dataclass(frozen=True)
class Reference:
    """A public function of a submission, to be called on ranks."""

    submission: Submission
    name: str


@dataclass(frozen=True)
class Submission:
    """A learner's module as text. `submission.NAME` refers to a public function of it."""

    exercise: Exercise
    source: str
    others: Mapping[str, str] = field(default_factory=dict)
    """Modules of earlier exercises that it builds on: text by full name."""

    def __getattr__(self, name: str) -> Reference:
        if name.startswith("_") or name not in self.exercise.public_names:
            raise AttributeError(f"{self.exercise.name} has no public name {name!r}")
        return Reference(self, name)

    @property
    def modules(self) -> dict[str, str]:
        return {**self.others, self.exercise.name: self.source}


class MakeCluster(Protocol):
    """Makes the cluster that a check asks for; `hardware` are options of the virtual one: `inter_node`, `gpu`, ..."""

    def __call__(self, *, nnodes: int, nproc_per_node: int, **hardware: Any) -> Cluster: ...


def on_virtual(*, nnodes: int, nproc_per_node: int, **hardware: Any) -> Cluster:
    """Virtual ranks on the hardware that was asked for."""
    return virtual(nnodes=nnodes, nproc_per_node=nproc_per_node, **hardware)


def on_local(*, nnodes: int, nproc_per_node: int, **hardware: Any) -> Cluster:
    """Real processes, all on this machine, whatever hardware was asked for."""
    return local(nproc_per_node=nnodes * nproc_per_node)


KINDS: dict[str, MakeCluster] = {"virtual": on_virtual, "local": on_local}


class Ranks:
    """Makes ranks for the checks of one submission.

    make: `virtual`, `local`, or a function that makes a cluster (the grader's own). timeout: seconds of wall-clock time
    for one call; once a call has used it up, later ones get a quarter, so that code which hangs is not waited for long.
    """

    def __init__(self, make: str | MakeCluster = "virtual", timeout: float = 20.0) -> None:
        if isinstance(make, str) and make not in KINDS:
            raise ValueError(f"no cluster is called {make!r}; there are: {', '.join(KINDS)}")
        self._make = KINDS[make] if isinstance(make, str) else make
        self._timeout = timeout
        self._hung = False
        self.last_run: Run | None = None

    def __call__(self, world_size: int, *, nproc_per_node: int = 1, **hardware: Any) -> RankSet:
        """`world_size` ranks, each a node of its own unless `nproc_per_node` says otherwise."""
        if world_size % nproc_per_node:
            raise ValueError(f"world_size must be a multiple of nproc_per_node={nproc_per_node}, got {world_size}")
        nnodes = world_size // nproc_per_node
        return RankSet(self, self._make(nnodes=nnodes, nproc_per_node=nproc_per_node, **hardware), world_size)

    @property
    def timeout(self) -> float:
        return self._timeout / 4 if self._hung else self._timeout

    def record(self, run: Run) -> None:
        """Keep the run: when the check fails, its picture is of this one."""
        self.last_run = run
        self._hung = self._hung or run.stopped.startswith("timeout")


@dataclass(frozen=True)
class RankSet:
    """Some ranks of a cluster. Each call runs on fresh ones."""

    _ranks: Ranks
    _cluster: Cluster
    world_size: int

    def call(self, function: Reference, inputs: Inputs) -> Run:
        """Call the function on every rank. Raises `RankFailed` when a rank fails."""
        return self.attempt(function, inputs).raise_if_failed()

    def attempt(self, function: Reference, inputs: Inputs) -> Run:
        """As `call`, where a failure is what the check wants to see."""
        submission = function.submission
        given = [inputs(rank) for rank in range(self.world_size)] if callable(inputs) else inputs
        if len(given) != self.world_size:
            raise ValueError(f"inputs must have an item for each of {self.world_size} ranks, got {len(given)}")
        arguments = [_arguments(item) for item in given]
        job = Job(
            call=(submission.exercise.name, function.name),
            arguments=tuple(arguments),
            groups=_groups(arguments),
            modules=submission.modules,
            timeout=self._ranks.timeout,
        )
        run = self._cluster.run(job)
        self._ranks.record(run)
        return run


_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _arguments(inputs: Args | Tensor | None) -> _Arguments | None:
    if inputs is None:
        return None
    given = inputs if isinstance(inputs, Args) else Args(inputs)
    return tuple(map(_own, given.args)), {name: _own(value) for name, value in given.kwargs.items()}


def _own(value: Any) -> Any:
    """A tensor of its own for each rank: virtual ranks share memory, and the exercise may work in place."""
    return value.clone() if isinstance(value, Tensor) else value


def _groups(arguments: Sequence[_Arguments | None]) -> tuple[tuple[int, ...], ...]:
    """The sub-groups that the arguments mention, in order of appearance."""
    values = [value for given in arguments if given is not None for value in (*given[0], *given[1].values())]
    return tuple(dict.fromkeys(group for value in values if (group := marked_group(value)) is not None))
