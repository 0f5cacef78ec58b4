"""A job: what to run on the ranks of a cluster. Plain data, the same for every kind of cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import cloudpickle


class InvalidJob(ValueError):
    """A job that cannot be run as it was asked for; the message names the option and its value."""


@dataclass(frozen=True)
class Job:
    """Code for every rank, and what it needs.

    Exactly one of three says what runs:
    - `source`, the text of a cell. It is executed as `__main__`; the value of a last expression is the rank's value;
    - `function`, bytes made by `Job.calling(f, ...)`: a function of this program, called on every rank;
    - `call`, a public function of an exercise module, `(exercise, name)`. Nothing of it is loaded in this process:
      it may be untrusted code. `arguments[rank]` is that rank's `(args, kwargs)`, tensors, plain data and what
      arguments.py can mark; a rank whose arguments are None makes no call. The process group stands when the call
      begins.
    """

    source: str | None = None
    function: bytes | None = None
    call: tuple[str, str] | None = None
    arguments: tuple[tuple[tuple[Any, ...], Mapping[str, Any]] | None, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    """For `call`: sub-groups that stand when it begins, as global ranks; `arguments.group_of(ranks)` stands for one."""

    filename: str = "<cell>"
    """Shown in tracebacks and traces: `Cell In[3]`."""
    first_line: int = 1
    """Line of the cell at which `source` begins: 2 below a magic line."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Exercise modules to ship: source text by exercise name, `phase3_multi_node/ring_allreduce`."""
    nnodes: int | None = None
    """Overrides the cluster's, as do the next two."""
    nproc_per_node: int | None = None
    timeout: float | None = None
    """Seconds of wall-clock time after which every rank is stopped; the cluster's own limit when None."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables, added on every rank to torchrun's own."""
    trace: bool = True
    """Record a trace."""

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.source, self.function, self.call)) != 1:
            raise InvalidJob("a Job needs exactly one of: source, function, call")
        for name in ("nnodes", "nproc_per_node"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidJob(f"{name} must be at least 1, got {value}")
        if self.timeout is not None and self.timeout <= 0:
            raise InvalidJob(f"timeout must be more than 0 seconds, got {self.timeout}")

    @classmethod
    def calling(cls, function: Callable[..., Any], *args: Any, **options: Any) -> Job:
        """A job that calls `function(*args)` on every rank; its return value is the rank's value.

        The function travels with what it closes over. `options` are the other fields of `Job`.
        """
        return cls(function=cloudpickle.dumps((function, args)), **options)
