"""Where the scheduler answers ranks that are processes of their own: it routes their every message.

`serve` holds the engine, in the process that asked for the run; remote.py is a rank's end. A rank sends some calls at a
time and gets one answer, to the last of them; it works only while it has its turn, so the trace is the same as with
thread ranks. What a rank says is taken as a request that may be wrong, never as a fact: it is known here who speaks,
every field is checked, and a rank that breaks the protocol is dropped.
"""

from __future__ import annotations

import math
import select
import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from labkit.clusters import wire
from labkit.clusters.run import RankError
from labkit.clusters.virtual import key_values
from labkit.clusters.virtual.collectives import REDUCTIONS
from labkit.clusters.virtual.engine import Engine
from labkit.clusters.virtual.exchange import ENDED, Allowance, Line, ProtocolError, UsedUp
from labkit.clusters.virtual.faults import Killed
from labkit.clusters.virtual.key_values import StoreCall
from labkit.clusters.virtual.requests import Collective, Receive, Request, Send, Timer

_COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "barrier", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all",
    "monitored_barrier",
)  # fmt: skip


MAX_RUN_BYTES = 4 << 30
"""Of all that the ranks of one run send: messages which nobody receives stay here."""
MAX_RUN_BYTES_OF_ANYBODY = 1 << 30
"""The same, of ranks that are not trusted."""
_READING = ("get", "wait", "check", "num_keys", "list_keys", "queue_len")
"""What a rank that is not trusted may do with the job's store, whose contents no trace shows. Groups need no more."""
_REQUEST_BYTES = 4096
"""What a request counts for in that, even one for nothing: it stays here, too."""
_REQUEST_BYTES_OF_ANYBODY = 8192
"""Some 100,000 of a run: checks go through all events of its trace, again and again."""
_ITEM_BYTES = 512
"""The same of a key, a value, a tensor in it, which may be said in five bytes."""
_MOST_GROUPS = 10_000
"""That a rank is in."""
_MOST_GROUPS_OF_ANYBODY = 200
"""Of a rank that is not trusted: that a group is there tells its other members something, and no trace shows it."""
_MOST_ERRORS_OF_ANYBODY = 4
"""That a rank which is not trusted is told of: when it comes tells something, and no trace shows it."""
_MOST = 1 << 62
"""Elements of a message, its tag, operators: numbers that fit where numbers of messages are kept."""
_MOST_THREADS = 1024
"""Of a rank, that wait at once."""
_MOST_SECONDS = 1e9
"""That a rank sleeps at once: a clock must not come to the end of its numbers."""


@dataclass(frozen=True)
class Alteration:
    """One message is changed on its way, so that what was made of it can be told from what was not.

    The first one from `rank` of at least two elements of `dtype` arrives with 1 added to each element.
    """

    rank: int
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Rules:
    """What ranks have a say in, and what they have not."""

    trusting: bool = True
    """They say how long they compute, and may ask for something as of an earlier time, as streams do."""
    works: Sequence[Collection[tuple[str, float]]] = ()
    """Work that the job declares, for each rank: name and seconds."""
    alteration: Alteration | None = None


def allowance(rules: Rules) -> Allowance:
    """For all that the ranks of one run send."""
    return Allowance(MAX_RUN_BYTES if rules.trusting else MAX_RUN_BYTES_OF_ANYBODY)


def serve(engine: Engine, connections: Sequence[socket.socket], rules: Rules, allowance: Allowance) -> None:
    """Answer all ranks until the last has ended. `connections[rank]` leads to that rank; they are closed then."""
    desks = [_Desk(engine, rank, connection, rules, allowance) for rank, connection in enumerate(connections)]

    def called_back(until_one: bool) -> int | None:
        """A rank that sleeps and says something nevertheless."""
        asleep = sorted(engine.several)
        while True:
            for rank in asleep:
                if desks[rank].is_called_back():
                    return rank
            if not until_one:
                return None
            select.select([connections[rank] for rank in asleep], [], [])

    engine.called_back = called_back
    try:
        while (rank := engine.next_rank()) is not None:
            desks[rank].turn()
    finally:
        for desk in desks:
            desk.line.close()


class _Desk:
    """Where the scheduler answers one rank."""

    def __init__(
        self, engine: Engine, rank: int, connection: socket.socket, rules: Rules, allowance: Allowance
    ) -> None:
        self._share = allowance.share(rank)
        self.line = Line(connection, self._share)
        self._engine = engine
        self._rank = rank
        self._allowance = allowance
        here = rules.alteration is not None and rules.alteration.rank == rank
        self._alteration = rules.alteration if here else None
        """To be done."""
        self._trusting = rules.trusting
        self._groups: set[str] = set()
        self._works = rules.works[rank] if rules.works else ()
        self._requests: dict[int, Request] = {}
        """By the number that the rank has given."""
        self._calls: deque[Any] = deque()
        """What has come in and is not done yet."""
        self._errors = 0
        """That the rank was told of."""
        self._resume: Callable[[], Any] | None = None
        """What the rank was put to sleep in: done when it has its turn again."""
        self._called_back = False

    def is_called_back(self) -> bool:
        """Does a thread of this rank, which sleeps, want its turn?"""
        self._called_back = self.line.has_come_in()
        return self._called_back

    def turn(self) -> None:
        """It is this rank's turn: answer it until it sleeps or ends."""
        if self._rank in self._engine.dropped:
            self._drop()
            return
        try:
            while True:
                if self._resume is None:
                    call = self._next_call()
                    if call is None and self._engine.gone is None:
                        self._engine.gone = self._rank
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
                self.line.send(answer)
        except Exception as error:  # whatever a rank sends, it must not end the scheduler, on which all others depend
            if not self._allowance.ended:
                self._blame(error)
            self._drop()

    def _blame(self, error: Exception) -> None:
        """Who is dropped for this: this rank, and first of all one that has left nothing for others to send."""
        dropped = self._engine.dropped
        refused = RankError("ProtocolError", f"{ENDED}: {str(error)[:200]}")
        if isinstance(error, UsedUp) and error.rank != self._rank:
            dropped.setdefault(error.rank, refused)
            why = f"{ENDED}: rank {error.rank} has used up what all ranks may send"
            dropped[self._rank] = RankError("PeerFailed", why, consequence=True)
        else:
            dropped[self._rank] = refused

    def _drop(self) -> None:
        self._engine.end(self._rank, failed=True)
        # the rank reads an end of file and cannot go on
        with suppress(OSError):
            self.line.hang_up()

    def _next_call(self) -> Any:
        """What the rank says next, or None when it has ended."""
        if not self._calls:
            said = self.line.receive()
            if said is None:
                return None
            if not isinstance(said, list) or not said:
                raise ProtocolError("calls come in a list")
            self._calls.extend(said)
        self._share.take(0)  # when the run is over, what is left of many calls is not worth an answer
        return self._calls.popleft()

    def _needs_no_answer(self, call: list[Any]) -> bool:
        # where something goes wrong on purpose, computing may take longer than the rank thinks, or be its end
        return call[0] in ("post", "tick", "leave_group", "call_back") or (
            call[0] == "compute" and not self._engine.faults.any
        )

    def _try(self, action: Callable[[], Any]) -> Any:
        """The answer, or None when the rank must sleep."""
        try:
            value = action()
        except RuntimeError as error:  # a deadlock, a mismatch: what the rank is to be told
            return "error", type(error).__name__, self._told(error), self._engine.clock[self._rank]
        except Killed:
            return ("killed",)
        return None if value is _SLEEP else ("ok", value, self._engine.clock[self._rank])

    def _told(self, error: RuntimeError) -> str:
        """What is said of an error to this rank: words of other ranks are in it, which no trace would show."""
        if self._trusting:
            return str(error)
        self._errors += 1
        if self._errors > _MOST_ERRORS_OF_ANYBODY:
            raise ProtocolError(f"it went on after {_MOST_ERRORS_OF_ANYBODY} errors")
        stub = f"why is kept back from ranks where calls are judged (error {self._errors} of this rank)"
        self._engine.kept_back[self._rank] = stub, str(error)
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
                request = self._requests[handle]
                return lambda: self._wait(handle, request, move_clock, timeout)
            case "wait_for_any", [[*handles], [*limits], bool() as restless] if (
                handles
                and len(handles) == len(limits) <= _MOST_THREADS
                and all(type(handle) is int and handle in self._requests for handle in handles)
                and all(isinstance(limit, float) and limit >= 0 for limit in limits)
            ):
                waits = {handle: (self._requests[handle], limit) for handle, limit in zip(handles, limits, strict=True)}
                return lambda: self._wait_for_any(waits, restless)
            case "call_back", []:
                return lambda: None
            case "done_at", [int() as handle] if handle in self._requests:
                request = self._requests[handle]
                return lambda: request.done_at
            case "is_done", [int() as handle] if handle in self._requests:
                request = self._requests[handle]
                return lambda: _SLEEP if self._steps_aside() else self._engine.is_done(self._rank, request)
            case "compute", [float() as until, int() as operations] if until < math.inf and 0 <= operations < _MOST:
                return lambda: self._compute(until, operations)
            case "work", [str() as name, float() as seconds] if (name, seconds) in self._works:
                return lambda: self._engine.work(self._rank, name, seconds)
            case "tick", [float() as seconds] if 0 <= seconds <= _MOST_SECONDS:
                return lambda: self._tick(seconds)
            case "sleep", [float() as seconds] if 0 <= seconds <= _MOST_SECONDS:
                left = [seconds]
                return lambda: self._sleep(left)
        raise ProtocolError(f"no such call: {name}"[:80])

    def _compute(self, until: float, operations: int) -> None:
        """The rank has added up by itself what it computed: in another order sums would end in other digits."""
        if not self._trusting:
            return
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

    def _post(self, handle: int, request: Request, at: float | None) -> None:
        self._share.take(_REQUEST_BYTES if self._trusting else _REQUEST_BYTES_OF_ANYBODY)
        if isinstance(request, StoreCall):
            self._share.take(_ITEM_BYTES * (len(request.keys) + len(request.values)))
        elif isinstance(request, Collective):
            self._share.take(_ITEM_BYTES * len(request.tensors))
        if at is not None and not self._trusting:
            at = max(at, self._engine.clock[self._rank])
        if self._alteration is not None and isinstance(request, Send):
            self._alter(request, self._alteration.dtype)
        self._requests[handle] = request
        if isinstance(request, StoreCall) and not self._may_write(request):
            told = "ranks write nothing into the store where calls are judged: send messages"
            self._engine.fail(request, RuntimeError(told))
            return
        self._engine.post(self._rank, request, at)

    def _alter(self, send: Send, dtype: torch.dtype) -> None:
        if send.dtype is dtype and send.numel >= 2:
            found = wire.tensor_from(send.payload, str(dtype), [send.numel])
            send.payload, self._alteration = wire.raw_bytes(found + 1), None

    def _wait(self, handle: int, request: Request, move_clock: bool, timeout: float) -> Any:
        if self._engine.must_sleep(self._rank, request, timeout):
            return _SLEEP
        # what a rank has been told, it may use in what it asks for next
        result = self._engine.finish(self._rank, request, move_clock or not self._trusting)
        if move_clock:
            self._requests.pop(handle, None)
        return result, request.source

    def _wait_for_any(self, waits: dict[int, tuple[Request, float]], restless: bool) -> Any:
        called_back, self._called_back = self._called_back, False
        if not called_back and self._engine.must_sleep_for_any(self._rank, list(waits.values()), restless):
            return _SLEEP
        return [handle for handle, (request, _) in waits.items() if self._engine.is_over(self._rank, request)]

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
        group = fields[1] if len(fields) > 1 else None
        if not isinstance(group, str) or not self._engine.is_in_group(self._rank, group):
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
                members = len(self._engine.groups[group])
                whole = name in _COLLECTIVES and all(isinstance(t, torch.Tensor) for t in tensors)
                if whole and -1 <= root < members and timeout >= 0 and _are_sizes(pieces) and _are_sizes(expected):
                    sizes = tuple(pieces), tuple(expected)
                    request = Collective(group, name, line[:200], tensors, op[:20], root, *sizes, timeout)
                    _check_collective(request, group_rank=self._engine.groups[group].index(self._rank), members=members)
                    return request
        raise ProtocolError("malformed request")


def _are_sizes(sizes: list[Any]) -> bool:
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
