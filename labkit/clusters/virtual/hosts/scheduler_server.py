"""The scheduler server for process ranks: it routes all of their messages.

`serve` runs the engine in the process that asked for the run; remote.py is a rank's end. A rank sends several calls at
a time and gets one answer, to the last of them; it works only while it has its turn, so the trace is the same as with
thread ranks. A rank's message is a request that may be wrong, never a fact: the sender is known from its connection,
every field is checked, and a rank that breaks the protocol is dropped.
"""

from __future__ import annotations

import math
import select
import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from labkit.clusters.rank_result import RankError
from labkit.clusters.virtual.endpoints.protocol import ENDED, ByteQuota, Connection, ProtocolError, QuotaExceeded
from labkit.clusters.virtual.scheduler import key_values
from labkit.clusters.virtual.scheduler.collectives import REDUCTIONS
from labkit.clusters.virtual.scheduler.engine import Engine
from labkit.clusters.virtual.scheduler.errors import Killed
from labkit.clusters.virtual.scheduler.requests import Blocked, Collective, Receive, Request, Send, StoreCall, Timer
from labkit.transport import wire

_COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "barrier", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all",
    "monitored_barrier",
)  # fmt: skip


MAX_RUN_BYTES = 4 << 30
"""Maximum bytes that all ranks of one run send: messages that nobody receives stay here."""
MAX_RUN_BYTES_OF_ANYBODY = 1 << 30
"""The same for ranks that are not trusted."""
_READING = ("get", "wait", "check", "num_keys", "list_keys", "queue_len")
"""Store operations allowed to untrusted ranks, since no trace shows the store's contents. Groups need no others."""
_REQUEST_BYTES = 4096
"""Bytes that each request counts towards that limit, even an empty one: it stays here, too."""
_REQUEST_BYTES_OF_ANYBODY = 8192
"""Allows some 100,000 requests per run: checks go through all events of its trace again and again."""
_ITEM_BYTES = 512
"""Bytes that each key, value or tensor in a request counts, although five bytes can encode it."""
_MOST_GROUPS = 10_000
"""Maximum groups per rank."""
_MOST_GROUPS_OF_ANYBODY = 200
"""Maximum groups per untrusted rank: a group's existence tells its other members something that no trace shows."""
_MOST_ERRORS_OF_ANYBODY = 4
"""Maximum errors reported to an untrusted rank: the time of an error tells it something that no trace shows."""
_MOST = 1 << 62
"""Maximum for a message's elements and tag and for operator counts: fits where these are stored."""
_MOST_THREADS = 1024
"""Maximum threads per rank that wait at once."""
_MOST_SECONDS = 1e9
"""Maximum seconds of one sleep: a clock must not overflow."""


@dataclass(frozen=True)
class Alteration:
    """A change to one message on its way: shows whether a result was computed from that message.

    The first message from `rank` with at least two elements of `dtype` arrives with 1 added to each element.
    """

    rank: int
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Rules:
    """Decisions that ranks may make for themselves."""

    trusting: bool = True
    """Whether ranks report their compute time, and may post a request at an earlier time, as streams do."""
    works: Sequence[Collection[tuple[str, float]]] = ()
    """Work that the job declares, for each rank: name and seconds."""
    alteration: Alteration | None = None


@dataclass
class Incidents:
    """Events that the ranks' programs did not cause."""

    gone: int | None = None
    """The first rank that ended in the middle of its turn."""
    dropped: dict[int, RankError] = field(default_factory=dict)
    """Ranks that broke the protocol, or for which others left no quota."""
    kept_back: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Last error stub sent to each untrusted rank, and the full message."""


def run_quota(rules: Rules) -> ByteQuota:
    """The byte quota for all ranks of one run."""
    return ByteQuota(MAX_RUN_BYTES if rules.trusting else MAX_RUN_BYTES_OF_ANYBODY)


def serve(engine: Engine, connections: Sequence[socket.socket], rules: Rules, quota: ByteQuota) -> Incidents:
    """Answer all ranks until the last has ended. `connections[rank]` leads to that rank; all are closed at the end."""
    incidents = Incidents()
    handlers = [
        _RankHandler(engine, rank, connection, rules, quota, incidents) for rank, connection in enumerate(connections)
    ]

    def called_back(until_one: bool) -> int | None:
        """The rank that is asleep but has sent a message."""
        asleep = sorted(engine.waiting.several)
        while True:
            for rank in asleep:
                if handlers[rank].is_called_back():
                    return rank
            if not until_one:
                return None
            select.select([connections[rank] for rank in asleep], [], [])

    engine.called_back = called_back
    try:
        while (rank := engine.next_rank()) is not None:
            handlers[rank].turn()
    finally:
        for handler in handlers:
            handler.connection.close()
    return incidents


class _RankHandler:
    """The scheduler's connection to one rank."""

    def __init__(
        self,
        engine: Engine,
        rank: int,
        connection: socket.socket,
        rules: Rules,
        quota: ByteQuota,
        incidents: Incidents,
    ) -> None:
        self._rank_quota = quota.for_rank(rank)
        self.connection = Connection(connection, self._rank_quota)
        self._engine = engine
        self._rank = rank
        self._quota = quota
        self._incidents = incidents
        here = rules.alteration is not None and rules.alteration.rank == rank
        self._alteration = rules.alteration if here else None
        """The alteration still to be made."""
        self._trusting = rules.trusting
        self._groups: set[str] = set()
        self._works = rules.works[rank] if rules.works else ()
        self._requests: dict[int, Request] = {}
        """Requests by the number that the rank chose."""
        self._calls: deque[Any] = deque()
        """Calls that have arrived and are not processed yet."""
        self._errors = 0
        """Number of errors reported to the rank."""
        self._resume: Callable[[], Any] | None = None
        """The call in which the rank went to sleep: repeated when the rank has its turn again."""
        self._called_back = False
        """Whether a thread of this rank wants the turn, and the rank need not sleep when it asks to."""

    def is_called_back(self) -> bool:
        """Whether a thread of this sleeping rank wants its turn."""
        self._called_back = self.connection.has_come_in()
        return self._called_back

    def turn(self) -> None:
        """Serve this rank during its turn, until it sleeps or ends."""
        if self._rank in self._incidents.dropped:
            self._drop()
            return
        try:
            while True:
                if self._resume is None:
                    call = self._next_call()
                    if call is None and self._incidents.gone is None:
                        self._incidents.gone = self._rank
                    if call is None or call == ["end", False] or call == ["end", True]:
                        self._engine.end(self._rank, failed=call != ["end", False])
                        return
                    self._resume = self._action(call)
                    if self._needs_no_answer(call):
                        self._resume()
                        self._resume = None
                        continue
                answer = self._try(self._resume)
                if answer is None:
                    return
                self._resume = None
                self.connection.send(answer)
        except Exception as error:  # no message from a rank may end the scheduler, on which all others depend
            if not self._quota.ended:
                self._blame(error)
            self._drop()

    def _blame(self, error: Exception) -> None:
        """Drop this rank, and first the rank that has used up the quota of the others, if there is one."""
        dropped = self._incidents.dropped
        refused = RankError("ProtocolError", f"{ENDED}: {str(error)[:200]}")
        if isinstance(error, QuotaExceeded) and error.rank != self._rank:
            dropped.setdefault(error.rank, refused)
            why = f"{ENDED}: rank {error.rank} has used up what all ranks may send"
            dropped[self._rank] = RankError("PeerFailed", why, consequence=True)
        else:
            dropped[self._rank] = refused

    def _drop(self) -> None:
        self._engine.end(self._rank, failed=True)
        # the rank reads an end of file and cannot go on
        with suppress(OSError):
            self.connection.hang_up()

    def _next_call(self) -> Any:
        """The rank's next call, or None if it has ended."""
        if not self._calls:
            calls = self.connection.receive()
            if calls is None:
                return None
            if not isinstance(calls, list) or not calls:
                raise ProtocolError("calls come in a list")
            self._calls.extend(calls)
        self._rank_quota.take(0)  # after the end of the run, remaining calls get no answer
        return self._calls.popleft()

    def _needs_no_answer(self, call: list[Any]) -> bool:
        # with injected faults, computing may take longer than the rank thinks, or kill it
        return call[0] in ("post", "tick", "leave_group", "call_back", "forget") or (
            call[0] == "compute" and not self._engine.faults.any
        )

    def _try(self, action: Callable[[], Any]) -> Any:
        """The answer, or None if the rank must sleep."""
        try:
            value = action()
        except RuntimeError as error:  # a deadlock or a mismatch: reported to the rank
            return "error", type(error).__name__, self._error_text(error), self._engine.clock[self._rank]
        except Killed:
            return ("killed",)
        return None if value is _SLEEP else ("ok", value, self._engine.clock[self._rank])

    def _error_text(self, error: RuntimeError) -> str:
        """The error message for this rank; withheld if untrusted: it quotes other ranks, which no trace shows."""
        if self._trusting:
            return str(error)
        self._errors += 1
        if self._errors > _MOST_ERRORS_OF_ANYBODY:
            raise ProtocolError(f"it went on after {_MOST_ERRORS_OF_ANYBODY} errors")
        stub = f"why is kept back from ranks where calls are judged (error {self._errors} of this rank)"
        self._incidents.kept_back[self._rank] = stub, str(error)
        return stub

    def _action(self, call: Any) -> Callable[[], Any]:
        if not isinstance(call, list) or not call or not isinstance(call[0], str):
            raise ProtocolError("a call is a list that begins with its name")
        name, *arguments = call
        match name, arguments:
            case "join_group", [str() as group, list() as ranks, str() as backend]:
                size = self._engine.topology.world_size
                if len(ranks) > size or not all(_is_index(r, size) for r in ranks) or len(set(ranks)) < len(ranks):
                    raise ProtocolError("a group of ranks of this job is needed")
                if self._rank not in ranks:
                    raise ProtocolError("only members make a group")
                most = _MOST_GROUPS if self._trusting else _MOST_GROUPS_OF_ANYBODY
                if len(self._groups) >= most:
                    raise ProtocolError(f"more than {most} groups")
                self._groups.add(group)
                return lambda: self._engine.join_group(self._rank, group, tuple(ranks), backend[:80])
            case "leave_group", [str() as group]:
                return lambda: self._engine.leave_group(self._rank, group)
            case "post", [int() as handle, list() as fields, (None | float()) as at]:
                if at is not None and not 0 <= at < math.inf:
                    raise ProtocolError("a time that is no time")
                if handle in self._requests:
                    raise ProtocolError("a request's number comes once")
                request = self._request(fields)
                return lambda: self._post(handle, request, at)
            case "wait", [int() as handle, bool() as move_clock, float() as timeout] if handle in self._requests:
                request, limit = self._requests[handle], [timeout]
                return lambda: self._wait(handle, request, move_clock, limit)
            case "wait_for_any", [[*handles], [*limits], bool() as restless] if (
                handles
                and len(handles) == len(limits) <= _MOST_THREADS
                and all(type(handle) is int and handle in self._requests for handle in handles)
                and all(isinstance(limit, float) and limit >= 0 for limit in limits)
            ):
                waits = {handle: (self._requests[handle], limit) for handle, limit in zip(handles, limits, strict=True)}
                return lambda: self._wait_for_any(waits, restless)
            case "forget", [int() as handle]:
                return lambda: self._requests.pop(handle, None)
            case "call_back", []:
                return self._call_back
            case "done_at", [int() as handle] if handle in self._requests:
                request = self._requests[handle]
                return lambda: request.done_at
            case "is_done", [int() as handle] if handle in self._requests:
                request = self._requests[handle]
                return lambda: _SLEEP if self._steps_aside() else self._engine.is_done(self._rank, request)
            case "compute", [float() as until, int() as operations] if until < math.inf and 0 <= operations < _MOST:
                return lambda: self._compute(until, operations)
            case "work", [str() as name, float() as seconds] if (name, seconds) in self._works:
                return lambda: self._engine.computing.work(self._rank, name, seconds)
            case "tick", [float() as seconds] if 0 <= seconds <= _MOST_SECONDS:
                return lambda: self._tick(seconds)
            case "sleep", [float() as seconds] if 0 <= seconds <= _MOST_SECONDS:
                left = [seconds]
                return lambda: self._sleep(left)
        raise ProtocolError(f"no such call: {name}"[:80])

    def _compute(self, until: float, operations: int) -> None:
        """Advance the clock to the rank's own sum: adding in another order would change the last digits."""
        if not self._trusting:
            return
        seconds = until - self._engine.clock[self._rank]
        if not seconds >= 0:
            raise ProtocolError("a clock that goes backwards")
        self._engine.computing.compute(self._rank, seconds, operations)
        if not self._engine.faults.any:
            self._engine.clock[self._rank] = until

    def _steps_aside(self) -> bool:
        """Let a rank that is ahead of others wait until they have caught up, so that it sees the present."""
        if self._engine.is_ahead(self._rank):
            self._engine.step_aside(self._rank)
            return True
        return False

    def _tick(self, seconds: float) -> None:
        self._engine.clock[self._rank] += seconds

    def _sleep(self, left: list[float]) -> Any:
        if left:  # otherwise this is the second call, after its turn has come
            self._engine.computing.sleep(self._rank, left.pop())
        return _SLEEP if self._steps_aside() else None

    def _post(self, handle: int, request: Request, at: float | None) -> None:
        self._rank_quota.take(_REQUEST_BYTES if self._trusting else _REQUEST_BYTES_OF_ANYBODY)
        if isinstance(request, StoreCall):
            self._rank_quota.take(_ITEM_BYTES * (len(request.keys) + len(request.values)))
        elif isinstance(request, Collective):
            self._rank_quota.take(_ITEM_BYTES * len(request.tensors))
        if at is not None and not self._trusting:
            at = max(at, self._engine.clock[self._rank])
        if self._alteration is not None and isinstance(request, Send):
            self._alter(request, self._alteration.dtype)
        self._requests[handle] = request
        if isinstance(request, StoreCall) and not self._may_write(request):
            message = "ranks write nothing into the store where calls are judged: send messages"
            self._engine.waiting.fail(request, RuntimeError(message))
            return
        self._engine.post(self._rank, request, at)

    def _alter(self, send: Send, dtype: torch.dtype) -> None:
        if send.dtype is dtype and send.numel >= 2:
            tensor = wire.tensor_from(send.payload, str(dtype), [send.numel])
            send.payload, self._alteration = wire.raw_bytes(tensor + 1), None

    def _wait(self, handle: int, request: Request, move_clock: bool, limit: list[float]) -> Any:
        # the second call comes when the wait is over, perhaps before the request is done
        if limit and self._engine.must_sleep(self._rank, request, limit.pop()):
            return _SLEEP
        # a rank may use a result in its next request
        result = self._engine.waiting.finish(self._rank, request, move_clock or not self._trusting)
        if move_clock:
            self._requests.pop(handle, None)
        return result, request.source

    def _call_back(self) -> None:
        # one that was sent just before the rank went to sleep would be lost otherwise, and nothing else may wake it
        self._called_back = True

    def _wait_for_any(self, waits: dict[int, tuple[Request, float]], restless: bool) -> Any:
        called_back, self._called_back = self._called_back, False
        if not called_back and self._engine.must_sleep_for_any(self._rank, list(waits.values()), restless):
            return _SLEEP
        return [handle for handle, (request, _) in waits.items() if self._engine.waiting.is_over(self._rank, request)]

    def _may_write(self, call: StoreCall) -> bool:
        return self._trusting or call.name in _READING

    def _request(self, fields: list[Any]) -> Request:
        match fields:
            case ["store", str() as name, str() as line, str() as table, list() as keys, list() as values,
                  int() as number, float() as timeout]:  # fmt: skip
                plain = all(isinstance(key, str) for key in keys) and all(isinstance(v, bytes) for v in values)
                if name in key_values.OPERATIONS and plain and timeout < math.inf and abs(number) < 1 << 63:
                    return StoreCall("", name, line[:200], table, keys, values, number, timeout)
            case ["timer", float() as seconds] if 0 <= seconds <= _MOST_SECONDS:
                return Timer("", "sleep", "", seconds)
            case ["blocked", str() as name, str() as line, str() as thread]:
                return Blocked("", name[:40], line[:200], thread[:40])
        group = fields[1] if len(fields) > 1 else None
        if not isinstance(group, str) or not self._engine.groups.has(self._rank, group):
            raise ProtocolError("unknown group: this rank has not joined it, or has destroyed it")
        size = self._engine.topology.world_size
        match fields:
            case ["send", _, str() as name, str() as line, to, int() as tag, str() as dtype, int() as numel, data]:
                kind = _dtype(dtype)
                nbytes = numel * kind.itemsize
                whole = data is None or (isinstance(data, bytes) and len(data) == nbytes)
                if _is_index(to, size) and 0 <= numel < _MOST and abs(tag) < _MOST and whole:
                    return Send(group, name[:20], line[:200], to, tag, kind, numel, nbytes, data)
            case ["receive", _, str() as name, str() as line, wanted, int() as tag, str() as dtype, int() as numel]:
                known = wanted is None or _is_index(wanted, size)
                if known and 0 <= numel < _MOST and abs(tag) < _MOST:
                    return Receive(group, name[:20], line[:200], wanted, tag, _dtype(dtype), numel)
            case ["collective", _, str() as name, str() as line, list() as tensors, str() as op, int() as root,
                  list() as pieces, list() as expected, float() as timeout]:  # fmt: skip
                members = len(self._engine.groups.members[group])
                whole = name in _COLLECTIVES and all(isinstance(t, torch.Tensor) for t in tensors)
                if whole and -1 <= root < members and timeout >= 0 and _are_sizes(pieces) and _are_sizes(expected):
                    sizes = tuple(pieces), tuple(expected)
                    request = Collective(group, name, line[:200], tensors, op[:20], root, *sizes, timeout)
                    _check_collective(
                        request, group_rank=self._engine.groups.members[group].index(self._rank), members=members
                    )
                    return request
        raise ProtocolError("malformed request")


def _are_sizes(sizes: list[Any]) -> bool:
    return all(type(size) is int and size >= 0 for size in sizes)


def _check_collective(request: Collective, group_rank: int, members: int) -> None:
    """Raise ProtocolError unless the numbers of a collective are consistent, whatever the other members request."""
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
