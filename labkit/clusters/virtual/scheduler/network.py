"""The virtual network: the links that messages and collectives cross, and when a message has crossed its links.

Messages share links by fair_sharing.py. A message that has its links to itself moves at the rate of the slowest one;
when others come or go, rates change, and the messages' ends with them. Messages of one group from one rank to another
use one connection and follow one another on it, in order. So incast, shared network cards and stragglers have their
cost without any formula for them.

A send lasts for as long as the sender's links need for it, if they share their rates fairly among sends: the network
buffers what the links behind them cannot take yet. So a busy receiver does not hold up its senders. It lasts no longer
than the message itself.

A collective's load is put on its links as a whole, behind the bytes that are under way there: it reserves each link
for as long as its bytes take, and messages stop there in the meantime.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import inf

from labkit.clusters.virtual.scheduler.fair_sharing import Channel, Flow, connected, fair_rates
from labkit.clusters.virtual.scheduler.nccl_cost_model import CollectivePlan
from labkit.clusters.virtual.scheduler.requests import Receive, Send
from labkit.hardware.topology import Hop, Topology


class Connection:
    """The way of one group's messages from one rank to another: one message is on it, others wait."""

    __slots__ = ("channels", "departure", "latency", "leaving", "message", "unsent", "waiting")

    def __init__(self, channels: tuple[Channel, ...], leaving: int, latency: float) -> None:
        """The first `leaving` channels are the sender's. latency: of the whole way, in seconds."""
        self.channels = channels
        self.leaving = leaving
        self.latency = latency
        self.message: Message | None = None
        """The message that crosses the channels."""
        self.waiting: deque[Message] = deque()
        """Messages behind it."""
        self.unsent: deque[Message] = deque()
        """Messages among those whose sends have not begun to leave."""
        self.departure: Departure | None = None
        """The send that leaves, unless it moves with `message` and ends with it."""


class Message(Flow):
    """A message, from the moment when both sides have requested it: a flow over all channels of its connection."""

    __slots__ = ("connection", "receive", "send", "sent")

    def __init__(self, send: Send, receive: Receive, connection: Connection) -> None:
        super().__init__(connection.channels, send.nbytes)
        self.send = send
        self.receive = receive
        self.connection = connection
        self.sent = False
        """Whether its send has ended before it."""


class Departure(Flow):
    """A message's send: a flow over the sender's channels, among sends."""

    __slots__ = ("message",)

    def __init__(self, message: Message) -> None:
        connection = message.connection
        channels = tuple([channel.for_sends() for channel in connection.channels[: connection.leaving]])
        super().__init__(channels, message.nbytes)
        self.message = message


class Network:
    """All channels of a topology, and the messages on them."""

    def __init__(
        self,
        topology: Topology,
        at: Callable[..., None],
        left: Callable[[float, Message], None],
        arrived: Callable[[float, Message], None],
        failed: Callable[[float, Message, str], None],
    ) -> None:
        """at: the engine's, see there.

        left: called when a message's send has ended, and `arrived` when its last byte has passed all of its channels,
        which ends its send, too. failed: called when one of them is cut, with the channel's name.
        """
        self.topology = topology
        self._at, self._left, self._arrived, self._failed = at, left, arrived, failed
        self._channels: dict[str, Channel] = {}
        self._connections: dict[tuple[str, int, int], Connection] = {}
        self._loads: dict[int, tuple[CollectivePlan, list[tuple[Channel, float]]]] = {}
        """Each collective's load on the channels, by the identity of its plan."""
        self._disturbed: dict[float, dict[Channel, None]] = {}
        """Channels whose flows have changed, by the time of the change, until rates are set anew."""

    def channel(self, hop: Hop) -> Channel:
        """The channel of this name, created on first use."""
        channel = self._channels.get(hop.name)
        if channel is None:
            channel = self._channels[hop.name] = Channel(hop.name, hop.bytes_per_second)
        return channel

    def connection(self, group: str, source: int, destination: int) -> Connection:
        """The group's connection from `source` to `destination`, see `Topology.path`."""
        connection = self._connections.get((group, source, destination))
        if connection is None:
            leaving, arriving = self.topology.path(source, destination)
            channels = tuple(self.channel(hop) for hop in (*leaving, *arriving))
            latency = self.topology.link_between(source, destination).latency_seconds
            connection = Connection(channels, len(leaving), latency)
            self._connections[group, source, destination] = connection
        return connection

    # Messages -----------------------------------------------------------------------------------------------------

    def begin(self, time: float, message: Message) -> None:
        """Begin a message, which both sides have requested."""
        connection = message.connection
        under_way = connection.message
        if under_way is None:
            connection.message = message
            if not self._start(time, message):
                connection.message = None
            return
        connection.waiting.append(message)
        connection.unsent.append(message)
        if under_way.sent:
            self._depart(time, connection)

    def _start(self, time: float, message: Message) -> bool:
        """Let it begin to cross its channels; False if it has ended at once."""
        channels, pace, alone = message.channels, 0.0, True
        for channel in channels:
            if channel.since > time:
                time = channel.since  # a rank whose clock lags behind (see streams.py) asks when others have gone by
            if channel.flows or channel.free_at > time:
                alone = False
            if channel.seconds_per_byte > pace:
                pace = channel.seconds_per_byte
        for channel in channels:
            if channel.cut_at <= time:
                self._failed(time, message, channel.name)
                return False
        if not message.nbytes:
            self._arrived(time, message)
            return False
        self._enter(time, message, pace if alone else inf)
        if alone and not message.sent and message.connection.departure is None:
            leaving = channels[: message.connection.leaving]
            if max([channel.seconds_per_byte for channel in leaving]) < pace:
                self._depart_with(time, message)
        return True

    def _enter(self, time: float, flow: Flow, pace: float) -> None:
        """Put it on its channels, at this pace if it is alone there."""
        for channel in flow.channels:
            channel.flows[flow] = None
        flow.since = time
        if pace < inf:
            flow.pace = pace
            flow.due = flow.entry = time + flow.nbytes * pace
            self._at(flow.due, self._end, flow)
        else:
            self._disturb(time, flow.channels)

    def _end(self, time: float, flow: Flow) -> None:
        """Handle a due entry of this flow; it is outdated if the flow has become slower or faster."""
        if flow.entry != time:
            return
        if flow.due > time:
            flow.entry = flow.due
            if flow.due < inf:
                self._at(flow.due, self._end, flow)
            return
        if flow.leave(time):
            self._disturb(time, flow.channels)
        self._over(time, flow)

    def _over(self, time: float, flow: Flow) -> None:
        """Handle the end of a flow, whose last byte has passed."""
        if isinstance(flow, Message):
            self._arrived(time, flow)
            self._follow(time, flow)
        elif isinstance(flow, Departure) and flow.message.connection.departure is flow:
            flow.message.sent = True
            flow.message.connection.departure = None
            self._left(time, flow.message)
            self._depart(time, flow.message.connection)

    def _follow(self, time: float, message: Message) -> None:
        """Start the next message after one that has left its connection."""
        connection = message.connection
        departure = connection.departure
        if departure is not None and departure.message is message:
            connection.departure = None
            if departure.entry is not None and departure.leave(time):
                self._disturb(time, departure.channels)
        while connection.waiting:
            following = connection.message = connection.waiting.popleft()
            if connection.unsent and connection.unsent[0] is following:
                connection.unsent.popleft()
            if self._start(time, following):
                return
        connection.message = None

    def _depart(self, time: float, connection: Connection) -> None:
        """Let the send of the next message leave."""
        if connection.departure is None and connection.unsent:
            self._depart_with(time, connection.unsent.popleft())

    def _depart_with(self, time: float, message: Message) -> None:
        """Let this message's send, or what is left of it, leave by itself."""
        departure = message.connection.departure = Departure(message)
        departure.left = message.left_at(time)
        self._enter(time, departure, inf)

    def _disturb(self, time: float, channels: Iterable[Channel]) -> None:
        """Set rates anew at the end of this instant, at once for everything that begins or ends at the same time."""
        if time not in self._disturbed:
            self._disturbed[time] = {}
            self._at(time, self._settle, None, last=True)
        disturbed = self._disturbed[time]
        for channel in channels:
            disturbed[channel] = None

    def _settle(self, time: float, _: object = None) -> None:
        """Set the rates of all flows that depend on the channels disturbed at `time`."""
        disturbed = self._disturbed.pop(time, {})  # nothing is left if a collective came first
        flows = connected(disturbed)[1]
        if not flows:
            return
        now = max(time, max([flow.since for flow in flows]))  # later only for a rank that lags behind
        self._disturbed[time] = disturbed
        for flow in flows:
            # its rate may change, so its send may no longer end with it
            if isinstance(flow, Message) and not flow.sent and flow.connection.departure is None:
                self._depart_with(time, flow)
        channels, flows = connected(self._disturbed.pop(time))
        over = [flow for flow in flows if flow.is_over(now)]
        for flow in over:
            flow.leave(now)
        for flow, rate in fair_rates(channels, now).items():
            flow.set_rate(now, rate)
            if flow.due < flow.entry:  # type: ignore[operator]  # not None: it has not ended
                flow.entry = flow.due
                self._at(flow.due, self._end, flow)
        for channel in channels:
            if channel.free_at > now and channel.flows:
                self._watch(channel, channel.next_change(now))
        for flow in over:
            self._over(now, flow)

    # Collectives --------------------------------------------------------------------------------------------------

    def carry(self, plan: CollectivePlan, now: float, start: float) -> tuple[float, str]:
        """Put a collective's bytes on its links from `start` on, behind their load at `now`.

        Returns when the last byte is through, and the name of a cut link, if the collective needs one.
        """
        known = self._loads.get(id(plan))
        if known is None:
            loads = [(self.channel(hop), nbytes) for hop, nbytes in plan.loads(self.topology) if nbytes]
            known = self._loads[id(plan)] = plan, loads
        return self.reserve(now, start, known[1])

    def reserve(self, now: float, start: float, loads: Iterable[tuple[Channel, float]]) -> tuple[float, str]:
        """Reserve each channel for so many bytes, as `carry` does."""
        for time in [time for time in self._disturbed if time <= now]:
            self._settle(time)  # the ends of messages that began at this instant must be known
        latest = start
        for channel, nbytes in loads:
            if channel.cut_at <= start:
                return start, channel.name
            end = channel.reserve(now, start, nbytes)
            if end > latest:
                latest = end
            if channel.flows:
                self._watch(channel, channel.next_change(now))
                if channel.sends is not None:
                    self._watch(channel.sends, channel.next_change(now))
        return latest, ""

    def _watch(self, channel: Channel, time: float) -> None:
        """Settle the channel's flows when a reservation begins or ends at `time`."""
        if time != channel.watched:
            channel.watched = time
            self._at(time, self._reservation_changes, channel)

    def _reservation_changes(self, time: float, channel: Channel) -> None:
        if channel.flows:
            self._disturb(time, (channel,))

    # Faults -------------------------------------------------------------------------------------------------------

    def channels_of(self, rank: int | None, node: int | None) -> list[Channel]:
        """Both directions of the port of `rank`, or of every network card of `node`."""
        if rank is not None:
            return [self.channel(hop) for hop in self.topology.port(rank)]
        assert node is not None
        return [
            self.channel(hop) for card in range(self.topology.nics_per_node) for hop in self.topology.nic(node, card)
        ]

    def slow_down(self, time: float, subject: tuple[Iterable[Channel], float]) -> None:
        """Slow these channels to a factor of their rate from now on; at 0 nothing passes any more."""
        channels, factor = subject
        for channel in channels:
            if factor:
                self._set_pace(time, channel, channel.rated / factor)
                continue
            channel.cut_at = time
            for message in [flow for flow in channel.flows if isinstance(flow, Message)]:
                if message.leave(time):
                    self._disturb(time, message.channels)
                self._failed(time, message, channel.name)
                self._follow(time, message)

    def restore(self, time: float, channels: Iterable[Channel]) -> None:
        """Restore these channels' full rate."""
        for channel in channels:
            channel.cut_at = inf
            self._set_pace(time, channel, channel.rated)

    def _set_pace(self, time: float, channel: Channel, seconds_per_byte: float) -> None:
        channel.set_pace(seconds_per_byte)
        for side in (channel, channel.sends):
            if side is not None and side.flows:
                self._disturb(time, (side,))
