"""Accounts of the ranks of one process: each rank's operators advance its clock and update its memory account."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from labkit.clusters.virtual.device import memory
from labkit.clusters.virtual.device.charging import Accounting, Costs
from labkit.clusters.virtual.device.fake import Shapes
from labkit.clusters.virtual.device.fake_charging import FakeAccounting
from labkit.clusters.virtual.device.garbage import collector
from labkit.clusters.virtual.device.memory import MemoryAccount
from labkit.clusters.virtual.device.recorded import RecordedAccount, RecordedFiles
from labkit.clusters.virtual.endpoints.endpoint import Endpoint
from labkit.clusters.virtual.endpoints.recording_endpoint import RecordingEndpoint
from labkit.hardware import Topology
from labkit.trace import MemorySample


class Ledger:
    """The accounts of the ranks of one process, to which torch reports; see hosts/patches.py."""

    def __init__(
        self, topology: Topology, account: bool, shapes_only: bool = False, claim: Callable[[int], None] | None = None
    ) -> None:
        """Without `account` nothing is counted. With `shapes_only` all tensors are fake.

        `claim(rank)` is called before that rank draws random numbers.
        """
        self._shapes = Shapes() if shapes_only else None
        self._topology = topology
        self._costs = {gpu: Costs(gpu) for gpu in (topology.gpu, *topology.gpus)}
        self._claim = claim
        self._account = account
        self._accounts: list[MemoryAccount] = []
        self._files: dict[str, Any] = {}
        if shapes_only:
            collector.count_storages(topology.world_size)

    @contextmanager
    def counting(self, endpoint: Endpoint) -> Iterator[None]:
        """Within the context, charge this thread's work to `endpoint`'s clock and to a memory account of its own."""
        with self._shapes.mode if self._shapes else nullcontext():
            if self._account:
                with self._charging(endpoint):
                    yield
            else:
                yield

    @contextmanager
    def _charging(self, endpoint: Endpoint) -> Iterator[None]:
        gpu = self._topology.gpu_of(endpoint.rank)
        files: Any = self._files
        if isinstance(endpoint, RecordingEndpoint):
            account: MemoryAccount = RecordedAccount(endpoint, int(gpu.memory_gb * 1e9), gpu.name)
            files = RecordedFiles(endpoint, files)
        else:
            account = self.new_account(endpoint.rank, lambda: endpoint.now)
            self._accounts.append(account)
        claim = None if self._claim is None else partial(self._claim, endpoint.rank)
        charged = self._costs[gpu], endpoint.compute, account, endpoint.race_detector, claim
        with (
            memory.counted_on(memory.Device(account, endpoint, self._topology, files)),
            FakeAccounting(self._shapes, *charged) if self._shapes else Accounting(*charged),
        ):
            yield
        if isinstance(account, RecordedAccount):
            collector.look_once()
        account.close()

    def new_account(self, rank: int, now: Callable[[], float]) -> MemoryAccount:
        """The memory account of a rank whose virtual clock is `now`."""
        gpu = self._topology.gpu_of(rank)
        return MemoryAccount(rank, int(gpu.memory_gb * 1e9), gpu.name, now, self._topology.world_size)

    def samples(self) -> tuple[MemorySample, ...]:
        """Memory of all ranks over time."""
        return in_order(self._accounts)


def in_order(accounts: Iterable[MemoryAccount]) -> tuple[MemorySample, ...]:
    """The samples of all accounts."""
    samples = [sample for account in accounts for sample in account.samples()]
    return tuple(sorted(samples, key=lambda sample: (sample.time, sample.rank)))
