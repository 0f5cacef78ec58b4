"""The sandboxes of one submission, one at a time: opened on demand, with the reason why each ended.

A sandbox that was ended because of what the submission did is part of what a check sees. A sandbox that fails by itself
costs no marks: `CannotJudge`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from autograder.sandbox import Sandbox, SandboxInstance, SandboxUnavailable
from labkit.checks import CannotJudge, CheckFailed
from labkit.clusters import Cluster, Job, RankResult, Run, storage_limits
from labkit.clusters.cluster import OnOutput, OnState
from labkit.clusters.forkserver.client import ForkServer, ForkServerDied
from labkit.clusters.local import local
from labkit.clusters.virtual import RankPool, virtual


class SubmissionSandbox:
    """Ranks in sandboxes made by `sandbox`, one sandbox at a time."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._instance: SandboxInstance | None = None
        self._memory_kills = 0
        """Number of the submission's processes killed for memory so far."""
        self._seconds = 0.0
        """Seconds spent in sandboxes that have ended."""
        self._pool: RankPool | None = None
        self._given: set[tuple[int, int]] = set()
        """Tensors already passed to the reusable ranks."""
        self._over = ""
        """Why no other sandbox is opened."""
        self.keeps_ranks = True
        """Whether virtual ranks are reused from one call of a check to the next."""

    def close(self) -> None:
        """End the sandbox and everything in it; the next call opens a new one."""
        self.forget()
        if self._instance is not None:
            self._instance.close()
            self._seconds += self._instance.seconds()
            self._instance, self._memory_kills = None, 0

    def end(self, why: str) -> None:
        """End what runs now, as the sandbox's limits do, and all that would follow. Any thread may call this."""
        self._over = why
        if (instance := self._instance) is not None:
            instance.end(why)

    def seconds(self) -> float:
        """Return the seconds spent in sandboxes, as if no other program had used the submission's cores."""
        return self._seconds + (0.0 if self._instance is None else self._instance.seconds())

    def forget(self) -> None:
        """End the reusable virtual ranks: the next call runs on ranks that know nothing of earlier calls."""
        self._given.clear()
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def virtual(self, *, nnodes: int, nproc_per_node: int, **hardware: Any) -> Cluster:
        """Return virtual ranks: processes whose messages are routed here; they cannot influence virtual time.

        Neither compute nor memory is modelled unless `account=True`, because it would rely on what the ranks report.
        """
        options = {"account": False, "trusting": False, **hardware}

        def make(forkserver: ForkServer) -> Cluster:
            pool = None
            if self.keeps_ranks:
                pool = self._pool = self._pool or RankPool(forkserver)
            more = {**options, "forkserver": forkserver, "pool": pool}
            return virtual(nnodes=nnodes, nproc_per_node=nproc_per_node, ranks="processes", **more)

        return _SandboxCluster(self, make, nnodes, nproc_per_node)

    def processes(self, *, nnodes: int, nproc_per_node: int, **hardware: Any) -> Cluster:
        """Return real gloo processes. The sandbox's own network is all that they share."""

        def make(forkserver: ForkServer) -> Cluster:
            return local(nproc_per_node, nnodes, backend="gloo", forkserver=forkserver)

        return _SandboxCluster(self, make, nnodes, nproc_per_node)

    def network_bytes(self) -> int:
        """Return the bytes sent over the sandbox's loopback so far, as counted by the kernel."""
        return self._open().usage().network_bytes

    def memory_beyond(self, before: Callable[[], Run], run: Callable[[], Run]) -> tuple[Run, int]:
        """Return the result of `run` and its addition to the peak memory of a fresh sandbox after running `before`."""
        self.close()
        before()
        idle = self._open().usage().memory_peak_bytes
        result = run()
        return result, self._open().usage().memory_peak_bytes - idle

    def run(self, make: Callable[[ForkServer], Cluster], job: Job) -> Run:
        """Run `job` in the sandbox; see `Cluster.run`. Raises `CannotJudge`."""
        given = set(_contents(job.arguments))
        if given & self._given:
            # ranks that have seen these tensors may already know the result, without a message
            self.forget()
        self._given |= given
        used = self._instance is not None
        instance = self._open()
        try:
            run = make(instance.forkserver).run(job)
        except ForkServerDied as death:
            self.close()
            if why := instance.ended:
                raise CheckFailed("every rank to return", why) from None
            if used:  # leftovers of earlier calls may be the cause; a fresh sandbox has none
                return self.run(make, job)
            raise CannotJudge(f"no rank could be started in the sandbox: {death}") from None
        run = self._without_claims(run)
        if why := instance.ended:
            self.close()
            return replace(run, stopped=why)
        if not run.ok and instance.usage().memory_kills > self._memory_kills:
            self._memory_kills = instance.usage().memory_kills
            limit = self._sandbox.memory_bytes / (1 << 30)
            return replace(run, stopped=f"memory: all processes together held more than {limit:g} GiB")
        return run

    def _without_claims(self, run: Run) -> Run:
        """Return the run with errors that name no other limits than the sandbox has."""
        limits = (self._sandbox.scratch_bytes, self._sandbox.scratch_files, self._sandbox.file_bytes)

        def checked(rank: RankResult) -> RankResult:
            if rank.error is None:
                return rank
            message = storage_limits.checked(rank.error.message, *limits)
            return replace(rank, error=replace(rank.error, message=message))

        return replace(run, ranks=list(map(checked, run.ranks)))

    def _open(self) -> SandboxInstance:
        if self._instance is not None and self._instance.ended:
            self.close()
        if self._instance is None:
            try:
                self._instance = self._sandbox.open()
            except SandboxUnavailable as problem:
                raise CannotJudge(str(problem)) from None
        if self._over:
            self._instance.end(self._over)
        return self._instance


def _contents(value: Any) -> Iterator[tuple[int, int]]:
    """Yield keys that identify tensors in arguments; the same numbers in another shape or dtype give the same key."""
    if isinstance(value, Tensor):
        flat = (torch.view_as_real(value) if value.is_complex() else value).flatten()
        # skip constant tensors, such as an output buffer: anyone can guess them
        if not flat.eq(flat[:1]).all():
            yield value.numel(), zlib.crc32(flat.detach().to(torch.float32).numpy().tobytes())
    elif isinstance(value, Mapping):
        yield from _contents(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _contents(item)


@dataclass(frozen=True)
class _SandboxCluster:
    """A cluster whose ranks run in whichever sandbox is open when it is asked to run a job."""

    _submission_sandbox: SubmissionSandbox
    _make: Callable[[ForkServer], Cluster]
    nnodes: int
    nproc_per_node: int

    @property
    def kind(self) -> str:
        return "sandbox"

    def describe(self) -> str:
        return "ranks in a sandbox"

    def run(self, job: Job, on_output: OnOutput | None = None, on_state: OnState | None = None) -> Run:
        return self._submission_sandbox.run(self._make, job)
