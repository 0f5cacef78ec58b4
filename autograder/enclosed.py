"""The sandboxes of one submission, one after the other: opened when they are needed, and why they ended.

A sandbox that was ended because of what the submission did is part of what a check sees. One that breaks by itself is
nobody's marks: `CannotJudge`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from autograder.sandbox import Enclosure, Sandbox, SandboxUnavailable
from labkit.checks import CannotJudge, CheckFailed
from labkit.clusters import Cluster, Job, Run
from labkit.clusters.cluster import OnOutput, OnState
from labkit.clusters.local import local
from labkit.clusters.virtual import KeptRanks, virtual
from labkit.clusters.warm import WarmProcess, WarmProcessDied


class Enclosed:
    """Ranks in sandboxes of `sandbox`. One sandbox at a time."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._enclosure: Enclosure | None = None
        self._memory_kills = 0
        """Of its processes, so far."""
        self._seconds = 0.0
        """In sandboxes that have ended."""
        self._kept: KeptRanks | None = None
        self._given: set[tuple[int, int]] = set()
        """Tensors that were handed to the ranks that are kept."""
        self.keeps_ranks = True
        """Virtual ranks are the same processes from one call of a check to its next."""

    def close(self) -> None:
        """End the sandbox and all that is in it; the next call opens another one."""
        self.forget()
        if self._enclosure is not None:
            self._enclosure.close()
            self._seconds += self._enclosure.seconds()
            self._enclosure, self._memory_kills = None, 0

    def seconds(self) -> float:
        """Time that has passed in sandboxes, as if no other program had taken a core from the submission."""
        return self._seconds + (0.0 if self._enclosure is None else self._enclosure.seconds())

    def forget(self) -> None:
        """End the virtual ranks that are kept: the next call is made on ranks that know nothing of earlier ones."""
        self._given.clear()
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def virtual(self, *, nnodes: int, nproc_per_node: int, **hardware: Any) -> Cluster:
        """Virtual ranks, processes whose messages are routed here; they have no say in their time.

        Neither computing nor memory is modelled, unless `account=True` asks for it: that is the ranks' own word.
        """
        options = {"account": False, "trusting": False, **hardware}

        def make(warm: WarmProcess) -> Cluster:
            kept = None
            if self.keeps_ranks:
                kept = self._kept = self._kept or KeptRanks(warm)
            more = {**options, "warm": warm, "kept": kept}
            return virtual(nnodes=nnodes, nproc_per_node=nproc_per_node, ranks="processes", **more)

        return _Inside(self, make, nnodes, nproc_per_node)

    def processes(self, *, nnodes: int, nproc_per_node: int, **hardware: Any) -> Cluster:
        """Real processes with gloo, on the sandbox's own network, which is all that they have in common."""

        def make(warm: WarmProcess) -> Cluster:
            return local(nproc_per_node, nnodes, backend="gloo", warm=warm)

        return _Inside(self, make, nnodes, nproc_per_node)

    def network_bytes(self) -> int:
        """What was sent on the loopback of the sandbox so far, as the kernel counts it."""
        return self._open().usage().network_bytes

    def memory_beyond(self, before: Callable[[], Run], run: Callable[[], Run]) -> tuple[Run, int]:
        """What `run` returns, and how much it adds to the peak memory of a fresh sandbox that has run `before`."""
        self.close()
        before()
        idle = self._open().usage().memory_peak_bytes
        found = run()
        return found, self._open().usage().memory_peak_bytes - idle

    def run(self, make: Callable[[WarmProcess], Cluster], job: Job) -> Run:
        """Run `job` in the sandbox; see `Cluster.run`. Raises `CannotJudge`."""
        given = set(_contents(job.arguments))
        if given & self._given:
            # ranks that have seen these tensors may know by now what comes of them, without a message
            self.forget()
        self._given |= given
        used = self._enclosure is not None
        enclosure = self._open()
        try:
            run = make(enclosure.warm).run(job)
        except WarmProcessDied as death:
            self.close()
            if why := enclosure.ended:
                raise CheckFailed("every rank to return", why) from None
            if used:  # what the submission has left in it may be in the way; it cannot have done that in a fresh one
                return self.run(make, job)
            raise CannotJudge(f"no rank could be started in the sandbox: {death}") from None
        if why := enclosure.ended:
            self.close()
            return replace(run, stopped=why)
        if not run.ok and enclosure.usage().memory_kills > self._memory_kills:
            self._memory_kills = enclosure.usage().memory_kills
            limit = self._sandbox.memory_bytes / (1 << 30)
            return replace(run, stopped=f"memory: all processes together held more than {limit:g} GiB")
        return run

    def _open(self) -> Enclosure:
        if self._enclosure is not None and self._enclosure.ended:
            self.close()
        if self._enclosure is None:
            try:
                self._enclosure = self._sandbox.open()
            except SandboxUnavailable as problem:
                raise CannotJudge(str(problem)) from None
        return self._enclosure


def _contents(value: Any) -> Iterator[tuple[int, int]]:
    """What tells the tensors in arguments apart; the same for the same numbers in another shape or dtype."""
    if isinstance(value, Tensor):
        flat = (torch.view_as_real(value) if value.is_complex() else value).flatten()
        # of one value only, such as a buffer for the result: everybody can guess it
        if not flat.eq(flat[:1]).all():
            yield value.numel(), zlib.crc32(flat.detach().to(torch.float32).numpy().tobytes())
    elif isinstance(value, Mapping):
        yield from _contents(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _contents(item)


@dataclass(frozen=True)
class _Inside:
    """A cluster whose ranks live in the sandbox that stands when it is asked to run something."""

    _enclosed: Enclosed
    _make: Callable[[WarmProcess], Cluster]
    nnodes: int
    nproc_per_node: int

    @property
    def kind(self) -> str:
        return "sandbox"

    def describe(self) -> str:
        return "ranks in a sandbox"

    def run(self, job: Job, on_output: OnOutput | None = None, on_state: OnState | None = None) -> Run:
        return self._enclosed.run(self._make, job)
