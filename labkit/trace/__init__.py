"""Events of the ranks, and the trace that holds them. Imports nothing else of labkit but `lazy_names`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from labkit.trace.between_nodes import bytes_between_nodes as bytes_between_nodes
    from labkit.trace.between_nodes import mixed_collectives as mixed_collectives
    from labkit.trace.columns import Columns as Columns
    from labkit.trace.columns import events_from as events_from
    from labkit.trace.columns import in_order as in_order
    from labkit.trace.events import Event as Event
    from labkit.trace.events import Kind as Kind
    from labkit.trace.memberships import Membership as Membership
    from labkit.trace.memory import Category as Category
    from labkit.trace.memory import MemorySample as MemorySample
    from labkit.trace.trace import SIGNAL_BYTES as SIGNAL_BYTES
    from labkit.trace.trace import Trace as Trace

# looked up at first use: `views`, which labkit itself imports, needs no numpy
_PUBLIC = {
    "Category": "labkit.trace.memory",
    "Columns": "labkit.trace.columns",
    "Event": "labkit.trace.events",
    "Kind": "labkit.trace.events",
    "Membership": "labkit.trace.memberships",
    "MemorySample": "labkit.trace.memory",
    "SIGNAL_BYTES": "labkit.trace.trace",
    "Trace": "labkit.trace.trace",
    "bytes_between_nodes": "labkit.trace.between_nodes",
    "events_from": "labkit.trace.columns",
    "in_order": "labkit.trace.columns",
    "mixed_collectives": "labkit.trace.between_nodes",
}
__all__ = sorted(_PUBLIC)

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
