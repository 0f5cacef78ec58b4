"""Pictures of traces and predictions. Each returns a `Picture`: a matplotlib figure with its alternative text.

Of a run's trace, `run.trace`:

    timeline(trace)          what every rank did when; also run.plot(), and run.view() to zoom into
    timelines({name: trace}) several runs, each a picture, on one scale
    critical_path(trace)     the chain of events that determined when the run ended
    overlap(trace)           how much communication is hidden behind computing
    bubbles(trace, stages)   how long pipeline stages are idle
    pipeline(actions)        what each rank of a pipeline does when, by microbatch, in a schedule or a run
    memory(trace, capacity)  memory of the ranks over time, by category
    peaks(traces, label)     memory at its peak, by category, run below run
    traffic_matrix(trace)    bytes sent between ranks
    card_traffic({name: trace}, nodes)      bytes that each rank sends to other nodes
    step_lanes({name: trace}, node, rank)   collectives of a rank inside its node and between nodes

Of predictions, `labkit.predict`:

    predicted_step({name: prediction})        steps, term by term
    predicted_memory({name: prediction})      memory of the fullest rank, against the GPU's
    predicted_scaling({name: points}, ...)    efficiency as GPUs are added, and its cost
    layouts(search)                           every layout that was tried, and why some are rejected
    beside_measured({source: pairs})          predicted / measured, with a band

For numbers instead of pictures, use `labkit.trace.critical_path`, `labkit.trace.busy` and `Trace` itself.
"""

from labkit.plots.collectives.card_traffic import card_traffic
from labkit.plots.collectives.chunks import chunk_grid
from labkit.plots.collectives.exchanges import doubling_steps, exchanges, tree_steps
from labkit.plots.collectives.ring import ring_rounds
from labkit.plots.collectives.step_lanes import step_lanes
from labkit.plots.collectives.two_levels import two_levels
from labkit.plots.curve_panels import Panel, curve_panels
from labkit.plots.curves import Curve, curves
from labkit.plots.picture import Picture
from labkit.plots.predicted.layouts import layouts
from labkit.plots.predicted.measured import beside_measured
from labkit.plots.predicted.memory import predicted_memory
from labkit.plots.predicted.scaling import predicted_scaling
from labkit.plots.predicted.step import predicted_step
from labkit.plots.schedules.pipeline import pipeline
from labkit.plots.schedules.recomputation import recomputation
from labkit.plots.schedules.rendezvous import rendezvous
from labkit.plots.tensors.cuts import matrix_cuts
from labkit.plots.tensors.exponents import exponents
from labkit.plots.tensors.heat_maps import heat_maps
from labkit.plots.tensors.parts import part_grids
from labkit.plots.tensors.segments import segments
from labkit.plots.tensors.shards import shards
from labkit.plots.traces.memory import memory
from labkit.plots.traces.path import critical_path
from labkit.plots.traces.peaks import peaks
from labkit.plots.traces.shares import bubbles, overlap
from labkit.plots.traces.timeline import timeline
from labkit.plots.traces.timelines import timelines
from labkit.plots.traces.traffic import traffic_matrix

__all__ = [
    "Curve",
    "Panel",
    "Picture",
    "beside_measured",
    "bubbles",
    "card_traffic",
    "chunk_grid",
    "critical_path",
    "curve_panels",
    "curves",
    "doubling_steps",
    "exchanges",
    "exponents",
    "heat_maps",
    "layouts",
    "matrix_cuts",
    "memory",
    "overlap",
    "part_grids",
    "peaks",
    "pipeline",
    "predicted_memory",
    "predicted_scaling",
    "predicted_step",
    "recomputation",
    "rendezvous",
    "ring_rounds",
    "segments",
    "shards",
    "step_lanes",
    "timeline",
    "timelines",
    "traffic_matrix",
    "tree_steps",
    "two_levels",
]
