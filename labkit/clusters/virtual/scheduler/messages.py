"""Messages of the virtual cluster: matching of sends and receives, and how a message travels."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import Any

from labkit.clusters.virtual.scheduler import errors
from labkit.clusters.virtual.scheduler.agenda import Agenda
from labkit.clusters.virtual.scheduler.event_log import EventLog
from labkit.clusters.virtual.scheduler.groups import Groups
from labkit.clusters.virtual.scheduler.injected_faults import InjectedFaults
from labkit.clusters.virtual.scheduler.network import Message, Network
from labkit.clusters.virtual.scheduler.reach import Reach
from labkit.clusters.virtual.scheduler.requests import Receive, Request, Send
from labkit.clusters.virtual.scheduler.waiting_ranks import WaitingRanks
from labkit.hardware import Topology
from labkit.trace import Kind

_SEND, _RECEIVE = Kind.SEND.value, Kind.RECEIVE.value


class Messages:
    """Unmatched sends and receives, and messages on their way over the network."""

    def __init__(
        self,
        topology: Topology,
        agenda: Agenda,
        waiting: WaitingRanks,
        groups: Groups,
        reach: Reach,
        faults: InjectedFaults,
        log: EventLog,
    ) -> None:
        self._waiting, self._groups, self._reach, self._faults, self._log = waiting, groups, reach, faults, log
        self.network = Network(topology, agenda.at, self._left, self._arrived, self._failed)
        # (group, from, to, tag): unmatched requests of one side, in order; never of both
        self._boxes: dict[tuple[str, int, int, int], deque[Send | Receive]] = {}
        # (group, to, tag): receives from any rank
        self._open: dict[tuple[str, int, int], deque[Receive]] = {}

    def unmet(self) -> list[Send | Receive]:
        """All unmatched requests."""
        return [*chain.from_iterable(self._boxes.values()), *chain.from_iterable(self._open.values())]

    def forget(self) -> None:
        """Drop all unmatched requests."""
        self._boxes.clear()
        self._open.clear()

    def peers(self, request: Send | Receive) -> Sequence[int]:
        """Ranks that could complete this request."""
        if isinstance(request, Send):
            return [request.to]
        if request.wanted is not None:
            return [request.wanted]
        return [rank for rank in self._groups.members[request.group] if rank != request.rank]

    def posted_by(self, rank: int) -> list[Receive]:
        """Unmatched receives of this rank."""
        return [request for request in self.unmet() if isinstance(request, Receive) and request.rank == rank]

    def withdraw(self, request: Request) -> None:
        """Drop an unmatched send or receive."""
        box = self._box_of(request)
        if request in box:
            box.remove(request)

    def is_under_way(self, request: Request) -> bool:
        """Whether this is a send or a receive whose message has begun, or waits for an earlier one to pass."""
        is_message = isinstance(request, Send | Receive)
        return is_message and request.done_at is None and request not in self._box_of(request)

    def _box_of(self, request: Request) -> deque[Any]:
        """Unmatched requests like this one."""
        # by its key, without a search: a rank may leave a hundred thousand behind, each with one request
        box: deque[Any] | None = None
        if isinstance(request, Receive) and request.wanted is None:
            box = self._open.get((request.group, request.rank, request.tag))
        elif isinstance(request, Receive):
            box = self._boxes.get((request.group, request.wanted, request.rank, request.tag))  # type: ignore[arg-type]
        elif isinstance(request, Send):
            box = self._boxes.get((request.group, request.rank, request.to, request.tag))
        return deque() if box is None else box

    def accept_send(self, now: float, send: Send) -> None:
        key = send.group, send.rank, send.to, send.tag
        box = self._boxes.get(key)
        if self._open:
            anybody = self._open.get((send.group, send.to, send.tag))
            if anybody and not (box and isinstance(box[0], Receive) and box[0].order < anybody[0].order):
                self._meet(now, send, anybody.popleft())
                return
        if box is None:
            box = self._boxes[key] = deque()
        elif box and box[0].__class__ is Receive:
            self._meet(now, send, box.popleft())  # type: ignore[arg-type]  # what the line above asks
            return
        if not self._is_hopeless(now, send, send.to):
            box.append(send)

    def accept_receive(self, now: float, receive: Receive) -> None:
        source = receive.wanted
        if source is None:
            self._accept_from_anybody(now, receive)
            return
        key = receive.group, source, receive.rank, receive.tag
        box = self._boxes.get(key)
        if box is None:
            box = self._boxes[key] = deque()
        elif box and box[0].__class__ is Send:
            self._meet(now, box.popleft(), receive)  # type: ignore[arg-type]  # as above
            return
        if not self._is_hopeless(now, receive, source):
            box.append(receive)

    def _accept_from_anybody(self, now: float, receive: Receive) -> None:
        wanted = receive.group, receive.rank, receive.tag
        boxes = [
            box
            for (group, _, to, tag), box in self._boxes.items()
            if (group, to, tag) == wanted and box and isinstance(box[0], Send)
        ]
        if boxes:
            # by time: a rank that ran ahead has posted its request before one that is due earlier
            send = min(boxes, key=lambda box: (box[0].posted, box[0].order)).popleft()
            assert isinstance(send, Send)
            self._meet(now, send, receive)
            return
        if not self._is_hopeless(now, receive, None):
            self._open.setdefault(wanted, deque()).append(receive)

    def _is_hopeless(self, now: float, request: Send | Receive, peer: int | None) -> bool:
        """Fail a request whose peer (None: any rank) cannot be reached any more; whether it is such a one."""
        reach = self._reach
        if peer is not None and peer not in reach.lost and not reach.closed:
            return False
        peers = self.peers(request)
        error = reach.lost_peer(request, peers) or reach.closed_group(request, peers)
        if error is not None:
            self._waiting.fail(request, error, now)
        return error is not None

    def _meet(self, now: float, send: Send, receive: Receive) -> None:
        if send.dtype is not receive.dtype or send.numel != receive.numel:
            self._waiting.fail_all((send, receive), errors.unequal_message(send, receive), now)
            return
        receive.result, receive.source = send.payload, send.rank
        send.payload = None
        # a rank whose clock lags behind known results (see streams.py) may have asked later than the other one
        begin = send.posted if send.posted > receive.posted else receive.posted
        network = self.network
        network.begin(begin, Message(send, receive, network.connection(send.group, send.rank, receive.rank)))

    # What the network reports -------------------------------------------------------------------------------------

    def _left(self, time: float, message: Message) -> None:
        """Complete the send: the last byte has left the sender."""
        send, rows = message.send, self._log.rows
        self._waiting.complete(send, time)
        if rows is not None:
            rows.append(
                (send.rank, _SEND, send.name, send.posted, time, send.nbytes, send.to, send.group, send.order,
                 send.line)
            )  # fmt: skip

    def _arrived(self, time: float, message: Message) -> None:
        """Complete the receive, whose last byte has passed all links: the receiver has it one latency later."""
        send, receive, rows = message.send, message.receive, self._log.rows
        if not message.sent:
            self._left(time, message)
        latency = message.connection.latency
        end = time + (self._faults.latency(latency) if self._faults.any else latency)
        self._waiting.complete(receive, end)
        if rows is not None:
            rows.append(
                (receive.rank, _RECEIVE, receive.name, receive.posted, end, send.nbytes, send.rank, send.group,
                 send.order, receive.line)
            )  # fmt: skip

    def _failed(self, time: float, message: Message, name: str) -> None:
        """Fail the message: a link on its way is cut."""
        send, receive = message.send, message.receive
        error = errors.cut_link(name, send, receive)
        self._waiting.fail_all((receive,) if message.sent else (send, receive), error, time)
