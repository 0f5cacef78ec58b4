"""Virtual ranks as processes of their own, whose every message the scheduler routes.

The two ends of one protocol. `serve` holds the engine, in the process that asked for the run; `main` is a rank. They
exchange `wire` values, one call and one answer at a time; a rank works only while it has its turn, so the trace is the
same as with thread ranks. The serving side takes what a rank says as a request that may be wrong, never as a fact: it
knows itself who speaks, checks every field, and drops a rank that breaks the protocol.
"""

from __future__ import annotations

import math
import os
import random
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy
import torch
import torch.distributed as dist

from labkit.clusters import torch_versions, wire
from labkit.clusters.job import Job
from labkit.clusters.program import execute
from labkit.clusters.virtual import diagnosis, futures, key_values, store, streams
from labkit.clusters.virtual.accounting import Ledger
from labkit.clusters.virtual.collectives import REDUCTIONS
from labkit.clusters.virtual.endpoint import NO_CUDA, refuse_after_fork
from labkit.clusters.virtual.engine import Engine
from labkit.clusters.virtual.faults import Killed, LinkDown
from labkit.clusters.virtual.in_flight import InFlight
from labkit.clusters.virtual.isolation import clocks, current, random_states
from labkit.clusters.virtual.isolation.clocks import RankClock
from labkit.clusters.virtual.isolation.current import here
from labkit.clusters.virtual.key_values import StoreCall
from labkit.clusters.virtual.process_group import VirtualProcessGroup
from labkit.clusters.virtual.requests import Collective, Receive, Request, Send
from labkit.clusters.warm import Reporter
from labkit.hardware import Topology
from labkit.trace import Trace

MAX_MESSAGE_BYTES = 1 << 30
_ERRORS: dict[str, type[Exception]] = {
    error.__name__: error
    for error in (
        diagnosis.DeadlockError,
        diagnosis.PeerFailed,
        diagnosis.MismatchError,
        LinkDown,
        dist.DistStoreError,
        dist.QueueEmptyError,
    )
}
_COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "barrier", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all",
    "monitored_barrier",
)  # fmt: skip


class ProtocolError(ValueError):
    """A rank sent something that is no request."""


# The scheduler's end ----------------------------------------------------------------------------------------------


def serve(engine: Engine, connections: Sequence[socket.socket]) -> None:
    """Answer all ranks until the last has ended. `connections[rank]` leads to that rank."""
    desks = [_Desk(engine, rank, connection) for rank, connection in enumerate(connections)]
    while (rank := engine.next_rank()) is not None:
        desks[rank].turn()


class _Desk:
    """Where the scheduler answers one rank."""

    def __init__(self, engine: Engine, rank: int, connection: socket.socket) -> None:
        self._engine = engine
        self._rank = rank
        self._connection = connection
        self._requests: dict[int, Request] = {}
        self._resume: Callable[[], Any] | None = None
        """What the rank was put to sleep in: done when it has its turn again."""

    def turn(self) -> None:
        """It is this rank's turn: answer it until it sleeps or ends."""
        try:
            while True:
                if self._resume is None:
                    call = _receive(self._connection)
                    if call is None or call == ("end", False) or call == ("end", True):
                        self._engine.end(self._rank, failed=call != ("end", False))
                        return
                    self._resume = self._action(call)
                answer = self._try(self._resume)
                if answer is None:
                    return
                self._resume = None
                _send(self._connection, answer)
        except Exception:  # whatever a rank sends, it must not end the scheduler, on which all others depend
            self._engine.end(self._rank, failed=True)
            # the rank reads an end of file and cannot go on
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def _try(self, action: Callable[[], Any]) -> Any:
        """The answer, or None when the rank must sleep."""
        try:
            value = action()
        except RuntimeError as error:  # a deadlock, a mismatch: what the rank is to be told
            return "error", type(error).__name__, str(error), self._engine.clock[self._rank]
        except Killed:
            return ("killed",)
        return None if value is _SLEEP else ("ok", value, self._engine.clock[self._rank])

    def _action(self, call: Any) -> Callable[[], Any]:
        if not isinstance(call, tuple) or not call or not isinstance(call[0], str):
            raise ProtocolError("a call is a tuple that begins with its name")
        name, *arguments = call
        match name, arguments:
            case "join_group", [str() as group, tuple() as ranks]:
                if not all(_is_index(r, self._engine.topology.world_size) for r in ranks) or self._rank not in ranks:
                    raise ProtocolError("a group of ranks that include the caller is needed")
                return lambda: self._engine.join_group(self._rank, group, ranks)
            case "post", [tuple() as fields, (None | float()) as at] if at is None or 0 <= at < math.inf:
                request = self._request(fields)
                return lambda: self._post(request, at)
            case "wait", [int() as handle, bool() as move_clock, float() as timeout] if handle in self._requests:
                request = self._requests[handle]
                return lambda: self._wait(handle, request, move_clock, timeout)
            case "done_at", [int() as handle] if handle in self._requests:
                request = self._requests[handle]
                return lambda: request.done_at
            case "is_done", [int() as handle] if handle in self._requests:
                request = self._requests[handle]
                return lambda: _SLEEP if self._steps_aside() else self._engine.is_done(self._rank, request)
            case "compute", [float() as until, int() as operations] if until < math.inf:
                return lambda: self._compute(until, operations)
            case "tick", [float() as seconds] if 0 <= seconds < math.inf:
                return lambda: self._tick(seconds)
            case "sleep", [float() as seconds] if 0 <= seconds < math.inf:
                left = [seconds]
                return lambda: self._sleep(left)
        raise ProtocolError(f"no such call: {name}"[:80])

    def _compute(self, until: float, operations: int) -> None:
        """The rank has added up by itself what it computed: in another order sums would end in other digits."""
        seconds = until - self._engine.clock[self._rank]
        if not seconds >= 0:
            raise ProtocolError("a clock that goes backwards")
        self._engine.compute(self._rank, seconds, operations)
        if not self._engine.faults.any:
            self._engine.clock[self._rank] = until

    def _steps_aside(self) -> bool:
        """A rank that is ahead of others sees the present when they have caught up."""
        if self._engine.is_ahead(self._rank):
            self._engine.step_aside(self._rank)
            return True
        return False

    def _tick(self, seconds: float) -> None:
        self._engine.clock[self._rank] += seconds

    def _sleep(self, left: list[float]) -> Any:
        if left:  # else it is here for the second time, its turn having come
            self._engine.sleep(self._rank, left.pop())
        return _SLEEP if self._steps_aside() else None

    def _post(self, request: Request, at: float | None) -> int:
        self._engine.post(self._rank, request, at)
        self._requests[request.order] = request
        return request.order

    def _wait(self, handle: int, request: Request, move_clock: bool, timeout: float) -> Any:
        if self._engine.must_sleep(self._rank, request, timeout):
            return _SLEEP
        result = self._engine.finish(self._rank, request, move_clock)
        if move_clock:
            self._requests.pop(handle, None)
        return result, request.source

    def _request(self, fields: tuple[Any, ...]) -> Request:
        match fields:
            case ("store", str() as name, str() as line, str() as table, list() as keys, list() as values,
                  int() as number, float() as timeout):  # fmt: skip
                plain = all(isinstance(key, str) for key in keys) and all(isinstance(v, bytes) for v in values)
                if name in key_values.OPERATIONS and plain and timeout < math.inf:
                    return StoreCall("", name, line[:200], table, keys, values, number, timeout)
        group = fields[1] if len(fields) > 1 else None
        if not isinstance(group, str) or self._rank not in self._engine.groups.get(group, ()):
            raise ProtocolError("unknown group")
        size = self._engine.topology.world_size
        match fields:
            case ("send", _, str() as name, str() as line, to, int() as tag, str() as dtype, int() as numel, data):
                kind = _dtype(dtype)
                nbytes = numel * kind.itemsize
                whole = data is None or (isinstance(data, bytes) and len(data) == nbytes)
                if _is_index(to, size) and numel >= 0 and whole:
                    return Send(group, name[:20], line[:200], to, tag, kind, numel, nbytes, data)
            case ("receive", _, str() as name, str() as line, wanted, int() as tag, str() as dtype, int() as numel):
                if (wanted is None or _is_index(wanted, size)) and numel >= 0:
                    return Receive(group, name[:20], line[:200], wanted, tag, _dtype(dtype), numel)
            case ("collective", _, str() as name, str() as line, list() as tensors, str() as op, int() as root,
                  tuple() as pieces, tuple() as expected, float() as timeout):  # fmt: skip
                members = len(self._engine.groups[group])
                whole = name in _COLLECTIVES and all(isinstance(t, torch.Tensor) for t in tensors)
                if whole and -1 <= root < members and timeout >= 0 and _are_sizes(pieces) and _are_sizes(expected):
                    request = Collective(group, name, line[:200], tensors, op[:20], root, pieces, expected, timeout)
                    _check_collective(request, group_rank=self._engine.groups[group].index(self._rank), members=members)
                    return request
        raise ProtocolError("malformed request")


def _are_sizes(sizes: tuple[Any, ...]) -> bool:
    return all(type(size) is int and size >= 0 for size in sizes)


def _check_collective(request: Collective, group_rank: int, members: int) -> None:
    """Raise ProtocolError unless the numbers of a collective go together, whatever the other members ask for."""
    name, tensors, numels = request.name, request.tensors, [tensor.numel() for tensor in request.tensors]
    rooted = name in ("reduce", "broadcast", "gather", "scatter")
    count = {"barrier": 0, "monitored_barrier": 0, "all_to_all": 1, "gather": 1}.get(name)
    if name == "scatter":
        count = members if request.root == group_rank else 0
    right = (
        (request.root >= 0) == rooted
        and (len(tensors) == count if count is not None else tensors)
        and (request.op in REDUCTIONS) == (name in ("all_reduce", "reduce", "reduce_scatter"))
    )
    if name in ("all_to_all", "reduce_scatter"):
        pieces = request.pieces
        right = right and all(
            (len(pieces) == members and sum(pieces) == numel) if pieces else numel % members == 0 for numel in numels
        )
    elif request.pieces:
        right = False
    if name == "scatter":
        right = right and len(request.expected) == 1
    elif request.expected:
        right = right and name in ("all_gather", "all_to_all") and len(request.expected) == members
        right = right and len(tensors) == 1
    if not right:
        raise ProtocolError(f"malformed {name}")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ProtocolError(f"no such dtype: {name}"[:80])
    return dtype


_SLEEP = object()


def _is_index(value: Any, size: int) -> bool:
    return type(value) is int and 0 <= value < size


# The rank's end ---------------------------------------------------------------------------------------------------


def main(job: Job, index: int, options: Mapping[str, Any], reporter: Reporter, sock: socket.socket | None) -> None:
    """Run `job` as rank `index`, over `sock`: entry point in a fresh process."""
    assert sock is not None
    topology = Topology.from_plain(options["topology"])
    endpoint = SocketEndpoint(index, sock)
    ledger = Ledger(topology, options["account"])
    store.install()
    torch_versions.rendezvous_with(
        lambda _: store.rendezvous_store(), lambda: index, topology.world_size, ("env", "tcp", "file")
    )
    torch_versions.make_groups_with(
        lambda backend, name, rank, size, ranks, *_: VirtualProcessGroup(backend, name, rank, ranks, endpoint)
    )
    torch_versions.checkpoints_in_own_thread()
    torch_versions.refuse_cuda(NO_CUDA)
    futures.install()
    streams.install()
    here.endpoint, here.clock = endpoint, RankClock(endpoint)
    current.follow_threads()
    clocks.separate()
    generator, numpy_generator = random_states.seeded(index)
    random.setstate(generator.getstate())
    numpy.random.set_state(numpy_generator.get_state())
    torch.manual_seed(random_states.torch_seed(index))
    os.environ.update(job.environment)
    main = sys.modules["__main__"] = ModuleType("__main__")
    with torch.autograd.set_multithreading_enabled(False), ledger.counting(endpoint):
        result = execute(job, index, lambda: endpoint.now, main)
    if current.is_forked():
        os._exit(result.exit or 0)
    if job.trace:
        reporter.trace(Trace(topology.world_size, clock="modelled", memory=ledger.samples()))
    reporter.result(result)
    endpoint.end(result.error is not None or result.exit != 0)


class SocketEndpoint:
    """A process rank's line to the scheduler."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.rank = rank
        self.now = 0.0
        """This rank's virtual clock, in seconds."""
        self._computed = 0
        """Operators since the scheduler was last told."""
        self._connection = connection
        self.in_flight = InFlight()

    def join_group(self, name: str, ranks: tuple[int, ...]) -> None:
        self._ask("join_group", name, ranks)

    def post(self, request: Request, at: float | None = None) -> int:
        common = (request.group, request.name, request.line)
        match request:
            case Send(to=to, tag=tag, dtype=dtype, numel=numel, payload=data):
                fields: tuple[Any, ...] = ("send", *common, to, tag, _name(dtype), numel, data)
            case Receive(wanted=wanted, tag=tag, dtype=dtype, numel=numel):
                fields = ("receive", *common, wanted, tag, _name(dtype), numel)
            case Collective(tensors=tensors, op=op, root=root):
                tensors = [tensor.detach() for tensor in tensors]
                more = (request.pieces, request.expected, float(request.timeout))
                fields = ("collective", *common, tensors, op, root, *more)
            case StoreCall(store=table, keys=keys, values=values, number=number, timeout=timeout):
                fields = ("store", request.name, request.line, table, keys, values, number, float(timeout))
            case _:
                raise NotImplementedError(f"{type(request).__name__} on ranks that are processes")
        return int(self._ask("post", fields, at))

    def wait(self, handle: int, move_clock: bool = True, timeout: float = math.inf) -> tuple[Any, int]:
        arrived, source = self._ask("wait", handle, move_clock, timeout)
        return arrived, source

    def done_at(self, handle: int) -> float:
        return float(self._ask("done_at", handle))

    def is_done(self, handle: int) -> bool:
        return bool(self._ask("is_done", handle))

    def compute(self, seconds: float, operations: int = 1) -> None:
        self.now += seconds
        self._computed += operations

    def sleep(self, seconds: float) -> None:
        self._ask("sleep", float(seconds))

    def tick(self, seconds: float) -> None:
        self._ask("tick", float(seconds))

    def cut_off(self) -> None:
        self._ask = refuse_after_fork  # type: ignore[method-assign]

    def end(self, failed: bool) -> None:
        self._tell_computed()
        _send(self._connection, ("end", failed))

    def _tell_computed(self) -> None:
        if self._computed:
            operations, self._computed = self._computed, 0
            self._ask("compute", self.now, operations)

    def _ask(self, *call: Any) -> Any:
        self._tell_computed()
        _send(self._connection, call)
        answer = _receive(self._connection)
        if answer is None:
            raise diagnosis.PeerFailed("the scheduler ended this rank")
        if answer[0] == "killed":
            raise Killed
        if answer[0] == "error":
            _, name, message, self.now = answer
            raise _ERRORS.get(name, RuntimeError)(message)
        _, value, self.now = answer
        return value


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# Both ends --------------------------------------------------------------------------------------------------------


def _send(connection: socket.socket, value: Any) -> None:
    data = wire.dumps(value)
    connection.sendall(struct.pack("<Q", len(data)) + data)


def _receive(connection: socket.socket) -> Any:
    """The next value, or None at the end of the stream."""
    header = _exactly(connection, 8)
    if header is None:
        return None
    (length,) = struct.unpack("<Q", header)
    if length > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message of {length} bytes")
    data = _exactly(connection, length)
    return None if data is None else wire.loads(memoryview(data))


def _exactly(connection: socket.socket, length: int) -> bytearray | None:
    data = bytearray(length)
    view, filled = memoryview(data), 0
    while filled < length:
        count = connection.recv_into(view[filled:])
        if count == 0:
            return None
        filled += count
    return data
