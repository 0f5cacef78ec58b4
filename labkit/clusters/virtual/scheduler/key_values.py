"""The key-value store of a job, `torch.distributed.Store`, in the scheduler: one table of keys for each store.

The table is on node 0. An operation takes one round trip to that node, 2 latencies. A `get`, `wait` or `queue_pop`
with a missing key is done one round trip after another rank has set it, and fails after its timeout on the virtual
clock; a timeout as long as torch's default is not waited for if no rank is left that could set the key.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from labkit.clusters.rank_lists import named_ranks
from labkit.clusters.virtual.scheduler.agenda import Agenda
from labkit.clusters.virtual.scheduler.errors import PeerFailed
from labkit.clusters.virtual.scheduler.reach import Reach
from labkit.clusters.virtual.scheduler.requests import StoreCall
from labkit.clusters.virtual.scheduler.waiting_ranks import WaitingRanks
from labkit.hardware import Topology

DEFAULT_TIMEOUT_SECONDS = 300.0
"""torch's default."""


@dataclass(slots=True)
class _Table:
    data: dict[str, bytes] = field(default_factory=dict)
    queues: dict[str, deque[bytes]] = field(default_factory=lambda: defaultdict(deque))
    waiting: dict[str, list[StoreCall]] = field(default_factory=lambda: defaultdict(list))
    """Calls that wait, by missing key, in order of arrival."""


class KeyValues:
    """The stores of one job."""

    def __init__(self, topology: Topology, agenda: Agenda, waiting: WaitingRanks, reach: Reach) -> None:
        self._topology, self._agenda, self._waiting, self._reach = topology, agenda, waiting, reach
        self._tables: dict[str, _Table] = defaultdict(_Table)
        self._time_outs = 0
        """Number of timeouts on the agenda."""

    def accept(self, time: float, call: StoreCall) -> None:
        """Process an operation that has reached the store."""
        table = self._tables[call.store]
        try:
            call.result, changed = _OPERATIONS[call.name](table, call)
        except _Missing as missing:
            if call.timeout <= 0:
                self._fail_late(time, call)
                return
            table.waiting[missing.key].append(call)
            self._time_outs += 1
            self._agenda.at(time + call.timeout, self._time_out, call)
            return
        except RuntimeError as error:
            self._waiting.fail(call, error, time + self._round_trip(call.rank))
            return
        self._waiting.complete(call, time + self._round_trip(call.rank))
        for key in changed:
            self._wake(time, table, key)

    def _wake(self, time: float, table: _Table, key: str) -> None:
        waiting = table.waiting.pop(key, [])
        for call in waiting:
            if call.error is not None or call.done_at is not None:
                continue
            try:
                call.result, _ = _OPERATIONS[call.name](table, call)
            except _Missing as missing:
                table.waiting[missing.key].append(call)
            else:
                self._waiting.complete(call, time + self._round_trip(call.rank))

    def _round_trip(self, rank: int) -> float:
        topology = self._topology
        link = topology.intra_node if rank < topology.nproc_per_node else topology.inter_node
        return 2 * link.latency_seconds

    def _time_out(self, time: float, call: StoreCall) -> None:
        self._time_outs -= 1
        if call.error is not None or call.done_at is not None:
            return
        if call.timeout >= DEFAULT_TIMEOUT_SECONDS and len(self._agenda.entries) <= self._time_outs:
            # no rank can set the key any more, and the program did not mean to wait for the timeout
            if self._reach.lost:
                self._fail_with_lost(time)
            # otherwise the scheduler's diagnosis follows
        else:
            self._fail_late(time, call)

    def _fail_with_lost(self, time: float) -> None:
        failed = f"{named_ranks(sorted(self._reach.lost))} failed"
        for request in self._waiting.all_awaited():
            if isinstance(request, StoreCall):
                error = PeerFailed(f"waited in {request}: nobody has done that, and {failed}")
                self._waiting.fail(request, error, time)

    def _fail_late(self, time: float, call: StoreCall) -> None:
        keys = ", ".join(call.keys)
        error = dist.DistStoreError(f"wait timeout after {call.timeout * 1000:.0f}ms, keys: {keys}")
        self._waiting.fail(call, error, time)


class _Missing(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


_Done = tuple[Any, list[str]]
"""The answer, and the keys that it has set and that others may wait for."""


def _set(table: _Table, call: StoreCall) -> _Done:
    for key, value in zip(call.keys, call.values, strict=True):
        table.data[key] = value
    return None, call.keys


def _get(table: _Table, call: StoreCall) -> _Done:
    _wait(table, call)
    return [table.data[key] for key in call.keys], []


def _wait(table: _Table, call: StoreCall) -> _Done:
    for key in call.keys:
        if not _has(table, key):
            raise _Missing(key)
    return None, []


def _has(table: _Table, key: str) -> bool:
    return key in table.data or bool(table.queues.get(key))


def _add(table: _Table, call: StoreCall) -> _Done:
    (key,) = call.keys
    text = table.data.get(key, b"0")
    try:
        total = int(text) + call.number
    except ValueError:
        raise RuntimeError(f"store.add: the value of {key!r} is {text!r}, not a number") from None
    table.data[key] = str(total).encode()
    return total, call.keys


def _check(table: _Table, call: StoreCall) -> _Done:
    return all(_has(table, key) for key in call.keys), []


def _compare_set(table: _Table, call: StoreCall) -> _Done:
    (key,), (expected, desired) = call.keys, call.values
    if key not in table.data and expected:
        return expected, []
    if table.data.get(key, b"") == expected:
        table.data[key] = desired
        return desired, call.keys
    return table.data[key], []


def _delete_key(table: _Table, call: StoreCall) -> _Done:
    return table.data.pop(call.keys[0], None) is not None, []


def _num_keys(table: _Table, call: StoreCall) -> _Done:
    return len(table.data), []


def _list_keys(table: _Table, call: StoreCall) -> _Done:
    (prefix,) = call.keys
    return [key for key in table.data if key.startswith(prefix)], []


def _append(table: _Table, call: StoreCall) -> _Done:
    (key,) = call.keys
    table.data[key] = table.data.get(key, b"") + call.values[0]
    return None, call.keys


def _queue_push(table: _Table, call: StoreCall) -> _Done:
    table.queues[call.keys[0]].append(call.values[0])
    return None, call.keys


def _queue_pop(table: _Table, call: StoreCall) -> _Done:
    (key,) = call.keys
    if table.queues[key]:
        return table.queues[key].popleft(), []
    if call.number:
        raise _Missing(key)
    raise dist.QueueEmptyError("queue is empty")


def _queue_len(table: _Table, call: StoreCall) -> _Done:
    return len(table.queues[call.keys[0]]), []


_OPERATIONS: dict[str, Callable[[_Table, StoreCall], _Done]] = {
    "set": _set, "get": _get, "wait": _wait, "add": _add, "check": _check, "compare_set": _compare_set,
    "delete_key": _delete_key, "num_keys": _num_keys, "list_keys": _list_keys, "append": _append,
    "queue_push": _queue_push, "queue_pop": _queue_pop, "queue_len": _queue_len,
}  # fmt: skip
OPERATIONS = tuple(_OPERATIONS)
