"""A job: what to run on the ranks of a cluster. Plain data, the same for every kind of cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import cloudpickle

GpusOrCores = Literal["gpu", "cpu", "auto"]
"""torchrun's words for the number of ranks per node: its GPUs, its cores, or its GPUs if it has any, else its cores."""


class InvalidJob(ValueError):
    """A job that cannot be run with its options; the message names the option and its value."""


@dataclass(frozen=True)
class Script:
    """How a `Job`'s source runs as a program of its own, as under `python FILE` or `python -m MODULE`."""

    argv: tuple[str, ...]
    """`sys.argv`: the file as its user has named it, and the words after it."""
    folder: str
    """First entry of `sys.path`: the file's folder; with `-m`, the working directory."""
    file: str | None = None
    """`__file__`: an absolute path. None for cells of a notebook, which have none."""
    module: str | None = None
    """Name of the module, with `-m`: `package.module`, `package.__main__`."""


@dataclass(frozen=True)
class Job:
    """Code for every rank, and what it needs.

    Exactly one of three fields selects the code:
    - `source`, the text of a cell. It is executed as `__main__`; the value of a last expression is the rank's value;
    - `function`, bytes made by `Job.calling(f, ...)`: a function of this program, called on every rank;
    - `call`, a public function of an exercise module, `(exercise, name)`. Nothing of it is loaded in this process:
      it may be untrusted code. `arguments[rank]` is that rank's `(args, kwargs)`: tensors, plain data and the
      placeholders of arguments.py. A rank whose arguments are None makes no call.
    """

    source: str | None = None
    function: bytes | None = None
    call: tuple[str, str] | None = None
    arguments: tuple[tuple[tuple[Any, ...], Mapping[str, Any]] | None, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    """Sub-groups created before `call`, as global ranks; `arguments.group_of(ranks)` refers to one."""
    joined: bool = True
    """Whether the process group is initialized before `call`. False if the called function initializes it."""

    filename: str = "<cell>"
    """File name in tracebacks and traces: `Cell In[3]`."""
    first_line: int = 1
    """Line of the cell at which `source` begins: 2 below a magic line."""
    script: Script | None = None
    """The program that `source` is, unless it is a cell, whose last expression is a value."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Exercise modules to ship: source text by exercise name, `phase3_multi_node/ring_allreduce`."""
    nnodes: int | None = None
    """Number of nodes. This and the next two override the cluster's values."""
    nproc_per_node: int | GpusOrCores | None = None
    min_nnodes: int | None = None
    """torchrun's `--nnodes MIN:MAX`: minimum number of nodes to go on with; `nnodes` is the maximum. None: all."""
    max_restarts: int = 0
    """Maximum number of restarts of all ranks after one has failed."""
    timeout: float | None = None
    """Seconds after which every rank is stopped; None: the cluster's own limit."""
    hang_timeout: float | None = 20.0
    """Seconds without output or progress after which real ranks count as hanging; None: never."""
    on_hang: Literal["stop", "wait"] = "stop"
    """Reaction to a hang, besides reporting where each rank is."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables, added on every rank to those of torchrun."""
    trace: bool = True
    """Whether to record a trace."""

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.source, self.function, self.call)) != 1:
            raise InvalidJob("a Job needs exactly one of: source, function, call")
        if self.script is not None and self.source is None:
            raise InvalidJob("a Job with a script needs its source")
        for name in ("nnodes", "nproc_per_node", "min_nnodes"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise InvalidJob(f"{name} must be at least 1, got {value}")
        if isinstance(self.nproc_per_node, str) and self.nproc_per_node not in get_args(GpusOrCores):
            words = ", ".join(get_args(GpusOrCores))
            raise InvalidJob(f"nproc_per_node must be a number or one of {words}, got {self.nproc_per_node!r}")
        if self.min_nnodes is not None and self.nnodes is not None and self.min_nnodes > self.nnodes:
            raise InvalidJob(f"at least {self.min_nnodes} nodes of at most {self.nnodes} cannot be had")
        if self.max_restarts < 0:
            raise InvalidJob(f"max_restarts must be 0 or more, got {self.max_restarts}")
        for name in ("timeout", "hang_timeout"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidJob(f"{name} must be more than 0 seconds, got {value}")
        if self.on_hang not in ("stop", "wait"):
            raise InvalidJob(f"on_hang must be stop or wait, got {self.on_hang!r}")

    @classmethod
    def calling(cls, function: Callable[..., Any], *args: Any, **options: Any) -> Job:
        """A job that calls `function(*args)` on every rank; its return value is the rank's value.

        The function travels with its closure. `options` are the other fields of `Job`.
        """
        return cls(function=cloudpickle.dumps((function, args)), **options)
