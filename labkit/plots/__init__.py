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

Points of a scaling study (exercise 23's given part), real, virtual and predicted ones marked apart:

    scaling_study(points)                     efficiency and throughput over GPUs

For numbers instead of pictures, use `labkit.trace.critical_path`, `labkit.trace.busy` and `Trace` itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from labkit.plots.collectives.card_traffic import card_traffic as card_traffic
    from labkit.plots.collectives.chunks import chunk_grid as chunk_grid
    from labkit.plots.collectives.exchanges import doubling_steps as doubling_steps
    from labkit.plots.collectives.exchanges import exchanges as exchanges
    from labkit.plots.collectives.exchanges import tree_steps as tree_steps
    from labkit.plots.collectives.ring import ring_rounds as ring_rounds
    from labkit.plots.collectives.step_lanes import step_lanes as step_lanes
    from labkit.plots.collectives.two_levels import two_levels as two_levels
    from labkit.plots.curve import Curve as Curve
    from labkit.plots.curve import curves as curves
    from labkit.plots.panel import Panel as Panel
    from labkit.plots.panel import curve_panels as curve_panels
    from labkit.plots.picture import Picture as Picture
    from labkit.plots.predicted.layouts import layouts as layouts
    from labkit.plots.predicted.measured import beside_measured as beside_measured
    from labkit.plots.predicted.memory import predicted_memory as predicted_memory
    from labkit.plots.predicted.scaling import predicted_scaling as predicted_scaling
    from labkit.plots.predicted.step import predicted_step as predicted_step
    from labkit.plots.scaling import scaling_study as scaling_study
    from labkit.plots.schedules.pipeline import pipeline as pipeline
    from labkit.plots.schedules.recomputation import recomputation as recomputation
    from labkit.plots.schedules.rendezvous import rendezvous as rendezvous
    from labkit.plots.tensors.cuts import matrix_cuts as matrix_cuts
    from labkit.plots.tensors.exponents import exponents as exponents
    from labkit.plots.tensors.heat_maps import heat_maps as heat_maps
    from labkit.plots.tensors.parts import part_grids as part_grids
    from labkit.plots.tensors.segments import segments as segments
    from labkit.plots.tensors.shards import shards as shards
    from labkit.plots.traces.memory import memory as memory
    from labkit.plots.traces.path import critical_path as critical_path
    from labkit.plots.traces.peaks import peaks as peaks
    from labkit.plots.traces.shares import bubbles as bubbles
    from labkit.plots.traces.shares import overlap as overlap
    from labkit.plots.traces.timeline import timeline as timeline
    from labkit.plots.traces.timelines import timelines as timelines
    from labkit.plots.traces.traffic import traffic_matrix as traffic_matrix

# looked up at first use: most of these import matplotlib, some torch, and sliders draw without either
_PUBLIC = {
    "Curve": ".curve",
    "Panel": ".panel",
    "Picture": ".picture",
    "beside_measured": ".predicted.measured",
    "bubbles": ".traces.shares",
    "card_traffic": ".collectives.card_traffic",
    "chunk_grid": ".collectives.chunks",
    "critical_path": ".traces.path",
    "curve_panels": ".panel",
    "curves": ".curve",
    "doubling_steps": ".collectives.exchanges",
    "exchanges": ".collectives.exchanges",
    "exponents": ".tensors.exponents",
    "heat_maps": ".tensors.heat_maps",
    "layouts": ".predicted.layouts",
    "matrix_cuts": ".tensors.cuts",
    "memory": ".traces.memory",
    "overlap": ".traces.shares",
    "part_grids": ".tensors.parts",
    "peaks": ".traces.peaks",
    "pipeline": ".schedules.pipeline",
    "predicted_memory": ".predicted.memory",
    "predicted_scaling": ".predicted.scaling",
    "predicted_step": ".predicted.step",
    "recomputation": ".schedules.recomputation",
    "rendezvous": ".schedules.rendezvous",
    "ring_rounds": ".collectives.ring",
    "scaling_study": ".scaling",
    "segments": ".tensors.segments",
    "shards": ".tensors.shards",
    "step_lanes": ".collectives.step_lanes",
    "timeline": ".traces.timeline",
    "timelines": ".traces.timelines",
    "traffic_matrix": ".traces.traffic",
    "tree_steps": ".collectives.exchanges",
    "two_levels": ".collectives.two_levels",
}
__all__ = sorted(_PUBLIC)

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
