"""A rank's line to the scheduler, whether the rank is a thread of its process or a process of its own."""

from __future__ import annotations

from math import inf
from typing import Any, NoReturn, Protocol

from labkit.clusters.virtual.in_flight import InFlight
from labkit.clusters.virtual.rank_threads import RankThreads
from labkit.clusters.virtual.requests import Request

NO_CUDA = (
    "a virtual rank's GPU is modelled: its tensors stand in the CPU's memory, and count as on the GPU. Leave out "
    'torch.cuda.set_device(), .cuda() and .to("cuda"), and use the device "cpu"'
)


def refuse_after_fork(*_: Any) -> NoReturn:
    """What a copy of an endpoint does in a process that a rank has forked."""
    raise RuntimeError("torch.distributed can be used in a rank's own process only, not in one that it forked")


class Endpoint(Protocol):
    """What a virtual rank can ask for."""

    rank: int
    in_flight: InFlight
    """What it has asked for and not waited for yet."""

    @property
    def now(self) -> float:
        """This rank's virtual clock, in seconds."""

    def join_group(self, name: str, ranks: tuple[int, ...], backend: str) -> None:
        """This rank has made a process group. backend: the one that it asked for."""

    def leave_group(self, name: str) -> None:
        """This rank has destroyed a process group, and asks for nothing in it any more."""

    def post(self, request: Request, at: float | None = None) -> Any:
        """Ask for something; returns a handle at once. `at`: a stream's time, instead of the rank's clock."""

    def wait(self, handle: Any, move_clock: bool = True, timeout: float = inf) -> tuple[Any, int]:
        """Sleep until it is done; return what arrived and, for a receive, the rank that sent. Raises its error.

        Without `move_clock` the rank's clock stays behind until a later `wait` of the same handle. After `timeout`
        seconds on the virtual clock it fails.
        """

    def is_done(self, handle: Any) -> bool: ...

    def done_at(self, handle: Any) -> float:
        """When it was done, in virtual seconds; it must have been waited for without moving the clock."""

    def compute(self, seconds: float, operations: int = 1) -> None:
        """This rank's clock moves on: it works, on so many operators."""

    def work(self, name: str, seconds: float) -> None:
        """As `compute`, for work that the job declares; an event of its own."""

    def sleep(self, seconds: float) -> None:
        """This rank's clock moves on: it does nothing, and others run."""

    def share(self) -> RankThreads:
        """From now on several threads of the rank use it."""

    def cut_off(self) -> None:
        """This is a copy, in a process that the rank has forked: who uses it now gets a RuntimeError."""

    def tick(self, seconds: float) -> None:
        """This rank's clock moves on by a little, which is no event of its own."""
