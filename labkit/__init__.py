"""labkit: learn distributed training by writing it.

    from labkit import Job, local, virtual
    virtual(nproc_per_node=8).run(Job(source="..."))

In a notebook, `%load_ext labkit` brings the magics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.lazy_names import lazy_names
from labkit.trace import views

if TYPE_CHECKING:
    from labkit.checks import grade as grade
    from labkit.clusters import InvalidJob as InvalidJob
    from labkit.clusters import Job as Job
    from labkit.clusters import RankFailed as RankFailed
    from labkit.clusters import Run as Run
    from labkit.clusters.device import max_memory_allocated as max_memory_allocated
    from labkit.clusters.device import memory_allocated as memory_allocated
    from labkit.clusters.device import read as read
    from labkit.clusters.device import reset_peak_memory_stats as reset_peak_memory_stats
    from labkit.clusters.device import to_device as to_device
    from labkit.clusters.device import to_host as to_host
    from labkit.clusters.device import write as write
    from labkit.clusters.local import local as local
    from labkit.clusters.slurm import slurm as slurm
    from labkit.clusters.virtual import virtual as virtual
    from labkit.clusters.virtual.device.supposed import suppose as suppose
    from labkit.course.phase4_production.scaling_study.given import ScalingPoint
    from labkit.trace import Trace as Trace

# looked up at first use: importing labkit must not import torch, so that the command line answers at once
_PUBLIC = {
    "InvalidJob": "labkit.clusters",
    "Job": "labkit.clusters",
    "RankFailed": "labkit.clusters",
    "Run": "labkit.clusters",
    "Trace": "labkit.trace",
    "grade": "labkit.checks",
    "local": "labkit.clusters.local",
    "max_memory_allocated": "labkit.clusters.device",
    "memory_allocated": "labkit.clusters.device",
    "read": "labkit.clusters.device",
    "reset_peak_memory_stats": "labkit.clusters.device",
    "slurm": "labkit.clusters.slurm",
    "suppose": "labkit.clusters.virtual.device.supposed",
    "to_device": "labkit.clusters.device",
    "to_host": "labkit.clusters.device",
    "virtual": "labkit.clusters.virtual",
    "write": "labkit.clusters.device",
}
__all__ = sorted(_PUBLIC)

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _PUBLIC)


def _timeline(trace: Trace) -> Any:
    from labkit.plots import timeline

    return timeline(trace)


def _viewer(trace: Trace) -> Any:
    from labkit.notebook.viewer import Viewer

    return Viewer(trace)


def _scaling_study(points: Sequence[ScalingPoint]) -> str:
    """Return an element of HTML that needs no other file."""
    from labkit.plots import scaling_study

    return str(scaling_study(points).mimebundle()[0]["text/html"])


views.register("scaling_study", _scaling_study)
views.register("timeline", _timeline)
views.register("viewer", _viewer)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext labkit`: the magics of labkit.notebook."""
    from labkit.clusters.forkserver import starting
    from labkit.hub import idle_minutes

    # first of all, since the forkserver imports torch while this process does; a site with little memory starts it
    # when it is needed
    if not idle_minutes.allowed():
        starting.begin()
    from labkit.notebook import load_ipython_extension as load

    load(shell)
