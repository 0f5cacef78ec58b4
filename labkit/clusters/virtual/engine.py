"""The virtual cluster's scheduler: virtual clocks, messages, collectives, and the diagnosis when nobody can go on.

The rules, all of them:

1. Every rank has a clock. One rank runs at a time: the one whose clock is least (`next_rank`). A rank that is ahead of
   another steps aside before it communicates (`is_ahead`), so requests arrive in the order of virtual time.
2. A send and a receive meet when both are posted. From then on the message streams through the links of its route
   (network.py), which serve one message after the other. The send is done when its last byte has left the sender's
   port and network card, the receive when the last byte has arrived.
3. A collective begins when its last member has joined, and takes the time that timing.py states.
4. A rank that waits sleeps until its operation is done; then its clock is at least that time.
5. When nobody can run and somebody still waits, it is a deadlock, or the consequence of another rank's failure:
   diagnosis.py says which, and every waiting rank gets the error.

Nothing here knows how ranks are run: threads.py runs them as threads of this process, remote.py as processes of their
own. Ties are broken by order of arrival, so the same program gives the same trace, bit for bit.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

from labkit.clusters.virtual import collectives, diagnosis, timing
from labkit.clusters.virtual.network import Network, Route
from labkit.clusters.virtual.requests import Collective, Receive, Request, Send, nbytes, shown
from labkit.hardware import Topology
from labkit.trace import Kind, Trace, events_from

POLL_SECONDS = 1e-6
"""What asking a Work whether it is complete costs; without it a polling loop would never let time pass."""


_KINDS = {Send: Kind.SEND.value, Receive: Kind.RECEIVE.value, Collective: Kind.COLLECTIVE.value}


class MismatchError(RuntimeError):
    """Ranks asked for things that do not belong together: other collectives, dtypes, sizes or groups."""


@dataclass(slots=True, eq=False)
class Operation:
    """One request of one rank, from its posting to its end."""

    rank: int
    request: Request
    posted: float
    order: int
    done_at: float | None = None
    result: Any = None
    """What arrived: a tensor for a receive, a list of tensors for a collective."""
    source: int = -1
    """For a receive: the rank that sent."""
    error: Exception | None = None
    meeting: _Meeting | None = None


@dataclass(slots=True, eq=False)
class _Meeting:
    """A collective that gathers its members: who has joined so far, by rank."""

    joined: dict[int, Operation] = field(default_factory=dict)


class _Mailbox:
    """Messages and receivers of one (group, destination, tag) that have not met, each in order of posting."""

    __slots__ = ("receives", "sends")

    def __init__(self) -> None:
        self.sends: dict[int, deque[Operation]] = defaultdict(deque)
        self.receives: dict[int | None, deque[Operation]] = defaultdict(deque)


class Engine:
    """Schedules the ranks of one job on a topology."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.clock = [0.0] * topology.world_size
        self.waiting: dict[int, Operation] = {}
        self.ended: dict[int, bool] = {}
        """Ranks whose program has ended, and whether it failed."""
        self.groups: dict[str, tuple[int, ...]] = {}
        self._network = Network(topology)
        self._agenda: list[tuple[float, int, int | Callable[[float], None]]] = []
        self._order = 0
        self._mailboxes: dict[tuple[str, int, int], _Mailbox] = defaultdict(_Mailbox)
        self._meetings: dict[tuple[str, int], _Meeting] = {}
        self._calls: dict[tuple[str, int], int] = defaultdict(int)
        self._busy_until: dict[str, float] = defaultdict(float)
        # plain tuples of plain values: the garbage collector forgets about them, which it never does of an Event
        self._events: list[tuple[Any, ...]] = []
        self._computing: dict[int, tuple[float, float, int]] = {}
        for rank in range(topology.world_size):
            self.resume_at(0.0, rank)

    # Scheduling ---------------------------------------------------------------------------------------------------

    def next_rank(self) -> int | None:
        """Let time pass until a rank can run, and return it; None when all have ended."""
        while True:
            while self._agenda:
                time, _, entry = heapq.heappop(self._agenda)
                if isinstance(entry, int):
                    return entry
                entry(time)
            if not self.waiting:
                return None
            for rank, error in diagnosis.explain(self).items():
                self._fail(self.waiting[rank], error)

    def is_ahead(self, rank: int) -> bool:
        """Is anything due before this rank's clock? Then it must step aside: `resume_at` its clock, `next_rank`."""
        return bool(self._agenda) and self._agenda[0][0] < self.clock[rank]

    def resume_at(self, time: float, entry: int | Callable[[float], None]) -> None:
        """Put a rank, or a step of a message, on the agenda."""
        self._order += 1
        heapq.heappush(self._agenda, (time, self._order, entry))

    def end(self, rank: int, failed: bool) -> None:
        """The rank's program is over."""
        self._end_computing(rank)
        self.ended[rank] = failed

    # What ranks call ----------------------------------------------------------------------------------------------

    def join_group(self, rank: int, name: str, ranks: tuple[int, ...]) -> None:
        """A rank has made a process group; every member must mean the same one by its name."""
        known = self.groups.setdefault(name, ranks)
        if known != ranks:
            raise MismatchError(
                f"process group number {name} has ranks {list(ranks)} on rank {rank} but {list(known)} on others: "
                "every rank must call new_group for every group, also for those it is not in, in the same order"
            )

    def post(self, rank: int, request: Request) -> Operation:
        """Ask for something; returns at once. The rank must not be ahead. What is wrong is raised by `finish`."""
        self._order += 1
        self._end_computing(rank)
        operation = Operation(rank, request, self.clock[rank], self._order)
        if isinstance(request, Send):
            self._post_send(operation, request)
        elif isinstance(request, Receive):
            self._post_receive(operation, request)
        else:
            self._post_collective(operation, request)
        return operation

    def compute(self, rank: int, seconds: float, operations: int) -> None:
        """The rank works for `seconds`, on so many operators; what follows without a pause is one event."""
        start = self.clock[rank]
        self.clock[rank] = end = start + seconds
        last = self._computing.get(rank)
        if last is not None and last[1] == start:
            self._computing[rank] = (last[0], end, last[2] + operations)
        else:
            self._end_computing(rank)
            self._computing[rank] = (start, end, operations)

    def _end_computing(self, rank: int) -> None:
        computed = self._computing.pop(rank, None)
        if computed is not None:
            start, end, operations = computed
            self._events.append((rank, Kind.COMPUTE.value, "compute", start, end, 0, None, "", operations, ""))

    def is_done(self, rank: int, operation: Operation) -> bool:
        """Is it complete by now? Asking takes a little time. The rank must not be ahead."""
        self.clock[rank] += POLL_SECONDS
        return operation.error is not None or (operation.done_at is not None and operation.done_at <= self.clock[rank])

    def must_sleep(self, rank: int, operation: Operation) -> bool:
        """Begin to wait: True when the rank has to sleep (`next_rank` will return it once the operation is done)."""
        if operation.done_at is None and operation.error is None:
            self.waiting[rank] = operation
            return True
        return False

    def finish(self, rank: int, operation: Operation, move_clock: bool = True) -> Any:
        """End of the wait: raise the operation's error or move the rank's clock and return what arrived."""
        if operation.error is not None:
            # one error may end many ranks: each gets an exception of its own, with its own traceback
            raise type(operation.error)(*operation.error.args)
        assert operation.done_at is not None
        if move_clock and operation.done_at > self.clock[rank]:
            self.clock[rank] = operation.done_at
        return operation.result

    @property
    def trace(self) -> Trace:
        # rows are (rank, kind, operation, start, end, ...); sorted twice, since the first key counts last
        self._events.sort(key=itemgetter(0, 4))
        self._events.sort(key=itemgetter(3))
        return Trace(self.topology.world_size, events_from(self._events), "modelled", dict(self.groups))

    def receives_posted_by(self, rank: int) -> list[Receive]:
        """Receives of this rank that no message has met."""
        boxes = [box for (_, to, _), box in self._mailboxes.items() if to == rank]
        operations = [operation for box in boxes for queue in box.receives.values() for operation in queue]
        return [operation.request for operation in operations if isinstance(operation.request, Receive)]

    # Messages -----------------------------------------------------------------------------------------------------

    def _post_send(self, send: Operation, request: Send) -> None:
        box = self._mailboxes[request.group, request.to, request.tag]
        waiting = [box.receives[key] for key in (send.rank, None) if box.receives.get(key)]
        if waiting:
            queue = min(waiting, key=lambda q: q[0].order)
            self._meet(send, request, queue.popleft())
        else:
            box.sends[send.rank].append(send)

    def _post_receive(self, receive: Operation, request: Receive) -> None:
        box = self._mailboxes[request.group, receive.rank, request.tag]
        if request.source is None:
            waiting = [queue for queue in box.sends.values() if queue]
        else:
            waiting = [box.sends[request.source]] if box.sends.get(request.source) else []
        if waiting:
            send = min(waiting, key=lambda q: q[0].order).popleft()
            assert isinstance(send.request, Send)
            self._meet(send, send.request, receive)
        else:
            box.receives[request.source].append(receive)

    def _meet(self, send: Operation, sent: Send, receive: Operation) -> None:
        wanted = receive.request
        assert isinstance(wanted, Receive)
        if (sent.tensor.dtype, sent.tensor.numel()) != (wanted.dtype, wanted.numel):
            error = MismatchError(
                f"rank {send.rank} sends {shown(sent.tensor.dtype, sent.tensor.numel())} "
                f"({sent.line or 'unknown line'}), but rank {receive.rank} receives into "
                f"{shown(wanted.dtype, wanted.numel)} ({wanted.line or 'unknown line'})"
            )
            self._fail(send, error)
            self._fail(receive, error)
            return
        receive.result, receive.source = sent.tensor, send.rank
        now = max(send.posted, receive.posted)
        self._pass(send, receive, self._network.route(send.rank, receive.rank), 0, nbytes([sent.tensor]), now)

    def _pass(self, send: Operation, receive: Operation, route: Route, hop: int, size: int, arrival: float) -> None:
        """The message has reached channel `hop` of its route: queue for it, and for the next ones if they are due."""
        while True:
            start, end = route.channels[hop].serve(arrival, size)
            hop += 1
            if hop == route.leaving:
                self._complete(send, end, size, receive.rank, send.order)
            if hop == len(route.channels):
                self._complete(receive, end + route.latency, size, send.rank, send.order)
                return
            # the next channel is fed without a pause from here on, at the latest when its own last byte must follow
            onward = max(start, end - size * route.channels[hop].seconds_per_byte)
            if onward > arrival:
                self.resume_at(onward, partial(self._pass, send, receive, route, hop, size))
                return

    def _complete(self, operation: Operation, time: float, size: int, peer: int | None, number: int) -> None:
        operation.done_at = time
        request = operation.request
        kind = _KINDS[type(request)]
        rank, posted = operation.rank, operation.posted
        self._events.append((rank, kind, request.name, posted, time, size, peer, request.group, number, request.line))
        self._wake(operation, time)

    def _fail(self, operation: Operation, error: Exception) -> None:
        operation.error = error
        self._wake(operation, self.clock[operation.rank])

    def _fail_all(self, operations: Iterable[Operation], error: Exception) -> None:
        for operation in operations:
            self._fail(operation, error)

    def _wake(self, operation: Operation, time: float) -> None:
        if self.waiting.get(operation.rank) is operation:
            del self.waiting[operation.rank]
            self.resume_at(max(time, self.clock[operation.rank]), operation.rank)

    # Collectives --------------------------------------------------------------------------------------------------

    def _post_collective(self, operation: Operation, request: Collective) -> None:
        members = self.groups[request.group]
        number = self._calls[request.group, operation.rank]
        self._calls[request.group, operation.rank] += 1
        meeting = self._meetings.setdefault((request.group, number), _Meeting())
        operation.meeting = meeting
        first = next(iter(meeting.joined.values()), None)
        meeting.joined[operation.rank] = operation
        if first is not None:
            assert isinstance(first.request, Collective)
            if collectives.signature(first.request) != collectives.signature(request):
                error = MismatchError(
                    f"call number {number + 1} in the group of ranks {list(members)} differs: rank {first.rank} called "
                    f"{first.request} ({first.request.line or 'unknown line'}), rank {operation.rank} called {request} "
                    f"({request.line or 'unknown line'})"
                )
                self._fail_all(meeting.joined.values(), error)
                return
        if len(meeting.joined) == len(members):
            del self._meetings[request.group, number]
            self._hold(request, members, [meeting.joined[rank] for rank in members], number)

    def _hold(self, request: Collective, members: tuple[int, ...], joined: list[Operation], number: int) -> None:
        calls = [operation.request for operation in joined if isinstance(operation.request, Collective)]
        size = max(nbytes(call.tensors) for call in calls)
        try:
            outputs = collectives.complete(calls)
        except Exception as error:  # an operation that the dtype does not have, or parts that do not fit
            self._fail_all(joined, RuntimeError(f"{request} cannot be done: {error}"))
            return
        # a group runs its collectives one after the other, as on one communication stream
        start = max(self._busy_until[request.group], *(operation.posted for operation in joined))
        end = start + timing.collective_seconds(request.name, size, members, self.topology)
        self._busy_until[request.group] = end
        for operation, call, output in zip(joined, calls, outputs, strict=True):
            operation.result = output
            self._complete(operation, end, nbytes(call.tensors), None, number)
