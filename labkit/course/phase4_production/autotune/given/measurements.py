"""Measurements of layouts: time and memory of one training step, and a log of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from labkit.course.phase4_production.autotune.given.arguments import require_search
from labkit.course.phase4_production.autotune.given.layouts import LayoutSpace
from labkit.hardware import Topology
from labkit.predict import Plan, predict
from labkit.predict.describe import Description


class Measurement(NamedTuple):
    """One training step. A step that needs more memory than a GPU has cannot run, however short it would be."""

    seconds: float
    nbytes: float
    """Memory that the fullest GPU needs."""


Measure = Callable[[Plan], Measurement]
T = TypeVar("T")


def predicted(model: Description, cluster: Topology) -> Measure:
    """Return a function that measures a plan by `labkit.predict`: no rank is run.

    Memory is the upper end of what torch's allocator may keep.
    """

    def measure(plan: Plan) -> Measurement:
        step = predict(model, plan, cluster)
        return Measurement(step.step_seconds, step.device_bytes.high)

    return measure


class TrialsUsedUp(Exception):
    """No further layout may be measured."""


class TrialLog:
    """Measures each plan once, and `limit` plans at most. `found` has all measurements by plan, in their order."""

    def __init__(self, measure: Measure, limit: int) -> None:
        self.found: dict[Plan, Measurement] = {}
        self._measure = measure
        self._limit = limit

    def measure(self, plan: Plan) -> Measurement:
        """Return the plan's measurement. A repeated plan is not measured again.

        Raises `TrialsUsedUp` if the plan is new and `limit` plans have been measured.
        """
        if plan not in self.found:
            if len(self.found) == self._limit:
                raise TrialsUsedUp(f"{self._limit} plans have been measured")
            self.found[plan] = Measurement(*self._measure(plan))
        return self.found[plan]


def search_of(
    model: Description, cluster: Topology, batch: int | None, measure: Measure | None, trials: int
) -> tuple[LayoutSpace, TrialLog]:
    """Return the layouts of a model on a cluster, and a log for `trials` measurements; `measure` None: `predicted`.

    Raises `ValueError` naming a wrong argument, also for a batch that no layout can divide.
    """
    require_search(model, cluster, batch, measure, trials)
    space = LayoutSpace(model, cluster, batch)
    if not space.splits():
        raise ValueError(f"batch {space.batch} of {model.name} cannot be divided among {cluster.world_size} GPUs")
    return space, TrialLog(measure or predicted(model, cluster), trials)


def some(found: Sequence[T], model: Description) -> Sequence[T]:
    """Return `found`. Raises `ValueError` if it is empty."""
    if not found:
        raise ValueError(f"no layout of {model.name} that was measured fits into the memory of a GPU")
    return found
