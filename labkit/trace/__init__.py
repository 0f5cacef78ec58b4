"""What happened on the ranks: events and the trace that holds them. Imports nothing else of labkit."""

from labkit.trace.events import Event, Kind
from labkit.trace.trace import Trace, events_from

__all__ = ["Event", "Kind", "Trace", "events_from"]
