"""Pictures of traces and predictions. Each returns a `Picture`: a matplotlib figure with its alternative text."""

from labkit.plots.chunks import chunk_grid
from labkit.plots.curves import Curve, curves
from labkit.plots.picture import Picture
from labkit.plots.ring import ring_rounds
from labkit.plots.timeline import timeline
from labkit.plots.traffic import traffic_matrix

__all__ = ["Curve", "Picture", "chunk_grid", "curves", "ring_rounds", "timeline", "traffic_matrix"]
