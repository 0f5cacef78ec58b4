"""A rank's connection to the scheduler, for thread ranks and process ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import Any, NoReturn, Protocol

from torch import Tensor

from labkit.clusters.virtual.endpoints.race_detection import RaceDetector
from labkit.clusters.virtual.endpoints.rank_threads import RankThreads
from labkit.clusters.virtual.scheduler.requests import Request

Moment = float | int
"""Time on the virtual clock: in seconds, or as a number under which the endpoint knows a time that has not been
computed yet (recording_endpoint.py)."""

NO_CUDA = (
    "a virtual rank's GPU is modelled: its tensors stand in the CPU's memory, and count as on the GPU. Leave out "
    'torch.cuda.set_device(), .cuda() and .to("cuda"), and use the device "cpu"'
)

NO_RPC = (
    "virtual ranks have no torch.distributed.rpc: its agent, one in each process, opens connections of its own, which "
    "take no virtual time. Use local ranks (%cluster local), or messages and collectives"
)


class KnownTimes:
    """The part of an endpoint whose clock is known at any time: its moments are seconds."""

    def moment(self: Any) -> float:
        return float(self.now)

    def later(self, one: float, other: float) -> float:
        return max(one, other)

    def seconds(self, moment: float) -> float:
        return moment

    def sleep_until(self: Any, moment: float) -> None:
        if moment > self.now:
            self.sleep(moment - self.now)


def refuse_after_fork(*_: Any) -> NoReturn:
    """Replaces the methods of an endpoint's copy in a process that a rank has forked."""
    raise RuntimeError("torch.distributed can be used in a rank's own process only, not in one that it forked")


class Endpoint(Protocol):
    """A virtual rank's interface to the scheduler."""

    rank: int
    race_detector: RaceDetector
    """Operations that the rank has not waited for yet."""
    observer: Callable[[Any, str, Sequence[Tensor]], None] | None
    """Called with each message and collective: its handle, its name as of the backend, its tensors. For profiles."""

    @property
    def now(self) -> float:
        """This rank's virtual clock, in seconds."""

    def join_group(self, name: str, ranks: tuple[int, ...], backend: str) -> None:
        """Record that this rank has created a process group. backend: the requested one."""

    def leave_group(self, name: str) -> None:
        """Record that this rank has destroyed a process group and makes no more requests in it."""

    def moment(self) -> Moment:
        """This rank's clock, as a moment."""

    def later(self, one: Moment, other: Moment) -> Moment:
        """The later one of two moments."""

    def seconds(self, moment: Moment) -> float:
        """The moment in virtual seconds."""

    def sleep_until(self, moment: Moment) -> None:
        """`sleep` until that moment, if it is still to come."""

    def post(self, request: Request, at: Moment | None = None) -> Any:
        """Post a request; returns a handle at once. `at`: a stream's time, instead of the rank's clock."""

    def wait(self, handle: Any, move_clock: bool = True, timeout: float = inf) -> tuple[Any, int]:
        """Wait for a request; return the arrived data and, for a receive, the sending rank. Raises the request's error.

        Without `move_clock` the rank's clock stays behind until a later `wait` of the same handle. The request fails
        after `timeout` seconds on the virtual clock.
        """

    def forget(self, handle: Any) -> None:
        """Stop waiting for this timer, or for what blocks a thread."""

    def is_done(self, handle: Any) -> bool: ...

    def done_at(self, handle: Any) -> Moment:
        """Completion time of a request that was waited for without moving the clock."""

    def period(self, handle: Any) -> tuple[float, float | None]:
        """Times at which a request that the observer got was posted and done; None: not done, as far as is known."""

    def compute(self, seconds: float, operations: int = 1) -> None:
        """Advance this rank's clock: it computes, `operations` operators."""

    def work(self, name: str, seconds: float) -> None:
        """Like `compute`, for work that the job declares; an event of its own."""

    def sleep(self, seconds: float) -> None:
        """Advance this rank's clock while it does nothing and others run."""

    def share(self) -> RankThreads:
        """Let several threads of the rank use the endpoint from now on."""

    def keeping_turn(self, why: str) -> AbstractContextManager[None]:
        """Within the context, a request that would let other ranks of this process run raises RuntimeError(why)."""

    def cut_off(self) -> None:
        """Disable this copy, in a process that the rank has forked: any use raises RuntimeError."""

    def tick(self, seconds: float) -> None:
        """Advance this rank's clock by a short time that is not an event of its own."""
