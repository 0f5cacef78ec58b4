"""Events of the ranks, and the trace that holds them. Imports nothing else of labkit."""

from labkit.trace.between_nodes import bytes_between_nodes, mixed_collectives
from labkit.trace.columns import Columns, events_from, in_order
from labkit.trace.events import Event, Kind
from labkit.trace.memberships import Membership
from labkit.trace.memory import Category, MemorySample
from labkit.trace.trace import SIGNAL_BYTES, Trace

__all__ = [
    "SIGNAL_BYTES",
    "Category",
    "Columns",
    "Event",
    "Kind",
    "Membership",
    "MemorySample",
    "Trace",
    "bytes_between_nodes",
    "events_from",
    "in_order",
    "mixed_collectives",
]
