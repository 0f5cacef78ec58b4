"""Ranks on which a check runs the learner's functions, and the submission that contains them.

    run = ranks(8, inter_node="ethernet-10g").call(submission.ring_all_reduce, lambda rank: torch.full((4096,), rank))
    run.values[3], run.trace.bytes_sent(rank=0)

    run = ranks.processes(4).call(submission.ring_all_reduce, inputs)      # real ones, with gloo
    run.bytes_on_the_wire, run.wall_seconds

`submission.ring_all_reduce` is a reference: the process that runs the rubric loads none of the learner's code.
To make more than one call, for example on a class, write a function, in the rubric or, if visible checks need it, too,
in the exercise's `scenarios`: `submission.used_by(function)`.
Inputs are a function of the rank, or a list with one item per rank. An item is a tensor, or several arguments,
`Args(tensor, op=reduce_op("MAX"), group=group_of([0, 2]))`, or None if the rank makes no call.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from types import ModuleType
from typing import Any, Protocol

from torch import Tensor

from labkit.catalogue import Exercise
from labkit.checks.expectations import NotMeasurable
from labkit.checks.first_use import first_use
from labkit.checks.patience import Patience
from labkit.clusters import Cluster, Job, Run
from labkit.clusters.arguments import marked_group
from labkit.clusters.forkserver.client import ForkServerDied
from labkit.clusters.local import local
from labkit.clusters.virtual import virtual
from labkit.command_line.commands import LabFailed
from labkit.text_files import read_text


class Args:
    """Arguments of one rank's call: `Args(shard, group=group_of([0, 2]))`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs


_FUTURE = "from __future__ import annotations\n"

CHECK_PHASE = "checks"
"""Folder name under which a rubric's own functions run on ranks, in the place of an exercise's phase."""
SCENARIO_PHASE = "<checks>"
"""The same for modules of `scenarios`. In brackets, their lines are never taken for the learner's: what the learner's
code calls there, such as a loss, fails or waits at the learner's line."""

Inputs = Callable[[int], Args | Tensor | None] | Sequence[Args | Tensor | None]
"""Arguments of each rank's call."""


@dataclass(frozen=True)
class Reference:
    """A public function of a submission, to be called on ranks."""

    submission: Submission
    name: str
    joined: bool = True
    """Whether the process group is initialized before the call."""


@dataclass(frozen=True)
class Submission:
    """A learner's module as text. `submission.NAME` refers to a public function of it."""

    exercise: Exercise
    source: str
    others: Mapping[str, str] = field(default_factory=dict)
    """Modules of the earlier exercises that it builds on: text by full name."""

    def __getattr__(self, name: str) -> Reference:
        if name.startswith("_") or name not in self.exercise.public_names:
            raise AttributeError(f"{self.exercise.name} has no public name {name!r}")
        return Reference(self, name)

    @property
    def modules(self) -> dict[str, str]:
        return {**self.others, self.exercise.name: self.source}

    @property
    def is_the_solution(self) -> bool:
        """Whether this module and all that it builds on are the course's solutions, but for blank lines around them."""
        return all(
            exercise.paths["solution"].is_file()
            and self.modules.get(exercise.name, "").strip() == read_text(exercise.paths["solution"]).strip()
            for exercise in (*self.exercise.builds_on, self.exercise)
        )

    def used_by(self, function: Callable[..., Any], *parts: Callable[..., Any], joined: bool = True) -> Reference:
        """A rubric's function to be called on ranks, for tests that need more than one call, such as those of a class.

            def trained(batches):
                from labkit.exercises import trainer
                ...
            run = ranks(4).call(submission.used_by(trained), batches)

        Only its source is sent, so it must import what it needs; `parts` are functions and classes of the rubric that
        it calls. Of the exercise's `scenarios` the source of the whole module is sent as soon as the function or a part
        is from there, so what is there may use everything that is there. Ranks do not import that module: they may be
        reused for several calls of a check, and the learner's code in an earlier one could have changed what it
        imports.

        It runs next to the learner's code, which can change anything it sees: its return value is only the rank's
        claim. joined: initialize the process group first.
        """
        given = (*parts, function)
        scenarios = dict.fromkeys(sys.modules[part.__module__] for part in given if _is_of_scenarios(part))
        sources = [*scenarios, *(part for part in given if not _is_of_scenarios(part))]
        first, *others = [*([] if scenarios else [_FUTURE]), *map(_text, sources)]
        text = "\n\n".join([first, *(other.replace(_FUTURE, "", 1) for other in others)])
        phase, name = CHECK_PHASE, function.__name__
        if _is_of_scenarios(function):
            phase, name = SCENARIO_PHASE, function.__module__.rpartition(".")[2]
        driver = Exercise(f"{phase}/{name}")
        return Reference(Submission(driver, text, self.modules), function.__name__, joined)


@functools.lru_cache(maxsize=256)
def _text(source: ModuleType | Callable[..., Any]) -> str:
    return textwrap.dedent(inspect.getsource(source))


def _is_of_scenarios(part: Callable[..., Any]) -> bool:
    return "scenarios" in part.__module__.split(".")


class CannotJudge(LabFailed):
    """No rank could be started, through no fault of the submission: no marks are given."""


class MakeCluster(Protocol):
    """Makes the cluster for a check; `hardware` are options of the virtual one: `inter_node`, `gpu`, ..."""

    def __call__(self, *, nnodes: int, nproc_per_node: int, **hardware: Any) -> Cluster: ...


def on_virtual(*, nnodes: int, nproc_per_node: int, **hardware: Any) -> Cluster:
    """Virtual ranks on the given hardware."""
    return virtual(nnodes=nnodes, nproc_per_node=nproc_per_node, **hardware)


def on_local(*, nnodes: int, nproc_per_node: int, **hardware: Any) -> Cluster:
    """Real processes, all on this machine; `hardware` is ignored. Checks' tensors are on the CPU, also beside a GPU."""
    return local(nproc_per_node=nnodes * nproc_per_node, backend="gloo")


KINDS: dict[str, MakeCluster] = {"virtual": on_virtual, "local": on_local}


class Ranks:
    """Makes ranks for the checks of one submission.

    make: `virtual`, `local`, or a function that makes a cluster (the grader's own). timeout: seconds for one call;
    after one call times out, later ones get a quarter, and after two no more are made; see `patience`. clock: the
    clock of the clusters' time limits. processes: makes real processes. network_bytes: all bytes that they have sent
    over a network of their own, by the kernel's count; None if there is no such network. memory_beyond: makes two
    runs where nothing has run before, and returns the second one and how much more memory it took, by the kernel's
    count; None if that cannot be measured. renew: ends the virtual ranks that are reused from call to call. Calls
    raise `CannotJudge` when no rank can be started.
    """

    def __init__(
        self,
        make: str | MakeCluster = "virtual",
        timeout: float = 20.0,
        *,
        processes: MakeCluster = on_local,
        network_bytes: Callable[[], int] | None = None,
        memory_beyond: Callable[[Callable[[], Run], Callable[[], Run]], tuple[Run, int]] | None = None,
        patience: Patience | None = None,
        renew: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if isinstance(make, str) and make not in KINDS:
            raise ValueError(f"unknown cluster {make!r}; available: {', '.join(KINDS)}")
        self._make = KINDS[make] if isinstance(make, str) else make
        self._make_processes = processes
        self._idle_bytes: dict[int, int] = {}
        self.network_bytes = network_bytes
        self.memory_beyond = memory_beyond
        self.patience = patience or Patience(timeout)
        self._renew = renew
        self.clock = clock
        self.last_run: Run | None = None

    def measuring(self, figures: Set[str]) -> Ranks:
        """The same ranks for one check that reads only these figures of the kernel: see `rubric.FIGURES`."""
        ranks = copy.copy(self)
        ranks.network_bytes = self.network_bytes if "network" in figures else None
        ranks.memory_beyond = self.memory_beyond if "memory" in figures else None
        ranks.last_run = None
        return ranks

    def __call__(self, world_size: int, *, nproc_per_node: int = 1, **hardware: Any) -> RankSet:
        """`world_size` ranks, `nproc_per_node` on each node."""
        if world_size % nproc_per_node:
            raise ValueError(f"world_size must be a multiple of nproc_per_node={nproc_per_node}, got {world_size}")
        nnodes = world_size // nproc_per_node
        return RankSet(self, self._make(nnodes=nnodes, nproc_per_node=nproc_per_node, **hardware), world_size)

    def renew(self) -> None:
        """Make the next call on virtual ranks in which none of the submission's code has run.

        For a state that one run saves and another one loads: it can pass only through the check.
        """
        self._renew()

    def processes(self, world_size: int) -> ProcessSet:
        """`world_size` real processes with gloo, whatever `ranks(...)` makes; the kernel counts their traffic."""
        cluster = self._make_processes(nnodes=1, nproc_per_node=world_size)
        return ProcessSet(self, cluster, world_size)

    def idle_bytes(self, ranks: ProcessSet) -> int:
        """Bytes that this many processes send when they only join the process group."""
        assert self.network_bytes is not None
        if ranks.world_size not in self._idle_bytes:
            before = self.network_bytes()
            ranks.run_once(Job(call=("nothing", "nothing"), arguments=(None,) * ranks.world_size)).raise_if_failed()
            self._idle_bytes[ranks.world_size] = self.network_bytes() - before
        return self._idle_bytes[ranks.world_size]


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
        """As `call`, but returns a failed run, for checks that examine failures."""
        submission = function.submission
        given = [inputs(rank) for rank in range(self.world_size)] if callable(inputs) else inputs
        if len(given) != self.world_size:
            raise ValueError(f"inputs must have an item for each of {self.world_size} ranks, got {len(given)}")
        arguments = [_arguments(item) for item in given]
        job = Job(
            call=(submission.exercise.name, function.name),
            arguments=tuple(arguments),
            groups=_groups(arguments),
            joined=function.joined,
            modules=submission.modules,
        )
        return self._run(job)

    def measured(self, function: Reference, inputs: Inputs) -> tuple[Run, int]:
        """As `call`, with the peak memory of all ranks together, in bytes, by the kernel's count.

        What torch takes for itself is not in it: `first_use` on the same ranks shows it beforehand. Confirms the memory
        that a rank reports (`run.trace.peak_memory`), to some 10 MB. Raises `NotMeasurable` where others use the same
        memory.
        """
        memory_beyond = self._ranks.memory_beyond
        if memory_beyond is None:
            raise NotMeasurable('memory is measured only in grading, for a check with needs={"memory"}')
        before = function.submission.used_by(first_use)
        return memory_beyond(
            lambda: self.call(before, [Args()] * self.world_size).raise_if_failed(), lambda: self.call(function, inputs)
        )

    def _run(self, job: Job) -> Run:
        return self.run_once(job)

    def run_once(self, job: Job) -> Run:
        """Run it within the time limit of `patience`."""
        patience, clock = self._ranks.patience, self._ranks.clock
        began = clock()
        try:
            run = self._cluster.run(replace(job, timeout=patience.seconds))
        except ForkServerDied as death:
            raise CannotJudge(str(death)) from None
        patience.note(run, clock() - began)
        # if the check fails, its picture shows this run
        self._ranks.last_run = run
        return run


@dataclass(frozen=True, repr=False)
class ProcessRun(Run):
    """A run of real processes."""

    network_bytes: int | None = None

    @property
    def bytes_on_the_wire(self) -> int:
        """Bytes sent by all ranks together, by the kernel's count: payload, a little TCP overhead, no set-up.

        Raises `NotMeasurable` where others use the network, too.
        """
        if self.network_bytes is None:
            raise NotMeasurable('bytes on the wire are counted only in grading, for a check with needs={"network"}')
        return self.network_bytes


_SILENT_SECONDS = 5.0
"""Seconds of waiting without progress after which real processes count as hung, to save the rest of the time limit."""


class ProcessSet(RankSet):
    """Real processes with gloo. Each call runs on fresh ones."""

    def call(self, function: Reference, inputs: Inputs) -> ProcessRun:
        """As `RankSet.call`."""
        run = self.attempt(function, inputs)
        run.raise_if_failed()
        return run

    def attempt(self, function: Reference, inputs: Inputs) -> ProcessRun:
        """As `RankSet.attempt`."""
        run = super().attempt(function, inputs)
        assert isinstance(run, ProcessRun)
        return run

    def _run(self, job: Job) -> Run:
        job = replace(job, hang_timeout=_SILENT_SECONDS)
        count = self._ranks.network_bytes
        idle = self._ranks.idle_bytes(self) if count else 0
        before = count() if count else 0
        run = self.run_once(job)
        # the number of packets for setting up varies a little
        sent = max(0, count() - before - idle) if count else None
        counted = ProcessRun(**{field.name: getattr(run, field.name) for field in fields(run)}, network_bytes=sent)
        self._ranks.last_run = counted
        return counted


_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _arguments(inputs: Args | Tensor | None) -> _Arguments | None:
    if inputs is None:
        return None
    given = inputs if isinstance(inputs, Args) else Args(inputs)
    return tuple(map(_own, given.args)), {name: _own(value) for name, value in given.kwargs.items()}


def _own(value: Any) -> Any:
    """A separate tensor for each rank: virtual ranks share memory, and the exercise may work in place."""
    return value.clone() if isinstance(value, Tensor) else value


def _groups(arguments: Sequence[_Arguments | None]) -> tuple[tuple[int, ...], ...]:
    """The sub-groups in the arguments, in order of appearance."""
    values = [value for given in arguments if given is not None for value in (*given[0], *given[1].values())]
    return tuple(dict.fromkeys(group for value in values if (group := marked_group(value)) is not None))
