"""What happened on the ranks: events and the trace that holds them. Imports nothing else of labkit."""

from labkit.trace.events import Event, Kind
from labkit.trace.memory import Category, MemorySample
from labkit.trace.trace import Trace, events_from

__all__ = ["Category", "Event", "Kind", "MemorySample", "Trace", "events_from"]
