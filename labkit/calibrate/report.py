"""Measured times beside the fitted lines, as tables and as a picture."""

from __future__ import annotations

from statistics import median

from rich.console import Console
from rich.table import Table

from labkit.calibrate.collectives import KINDS
from labkit.calibrate.run import Calibration
from labkit.calibrate.timing import Sample
from labkit.clusters.virtual.scheduler.nccl_cost_model import choose
from labkit.plots import Curve, Picture, curves

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))

WIDE = 0.5
"""Spread above which a median means little."""


def show(made: Calibration, console: Console) -> None:
    """Print all tables."""
    console.print(_samples(made))
    console.print(_quantities(made))
    if error := virtual_error(made):
        console.print(f"library collectives on virtual ranks of this preset: median error {error:.0%}")
    console.print(_checks(made))
    for one in made.checks:
        parts = ", ".join(f"{name} {duration(seconds)}" for name, seconds in one.prediction.breakdown().items())
        console.print(f"predicted on {one.ranks}: {parts}", highlight=False)
    wide = [one for one in made.samples if one.spread > WIDE]
    if wide:
        console.print(
            f"{len(wide)} of {len(made.samples)} times spread by more than {WIDE:.0%} of their median: something else "
            "was at work here; measure again when nothing is",
            style="yellow",
            highlight=False,
        )


def duration(seconds: float) -> str:
    """Format as `1.23 ms`."""
    for scale, unit in UNITS:
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def picture(made: Calibration) -> Picture:
    """Draw times of messages and collectives over size, with their fitted lines. Raises ValueError if there are
    none."""
    series = []
    for kind in KINDS:
        of = [one for one in made.samples if one.what == kind]
        if of:
            sizes = [one.size for one in of]
            series.append(Curve(kind, sizes, [one.seconds for one in of], "measured"))
            series.append(Curve(kind, sizes, [made.fitted.seconds[one] for one in of], "formula"))
    if not series:
        raise ValueError("there is nothing to draw: one rank sends nothing")
    title = f"{made.machine.ranks} ranks, {made.machine.name}, {made.date}"
    return curves(series, "bytes of the whole tensor", "seconds", title, log="xy", nbytes=True)


def virtual_error(made: Calibration) -> float | None:
    """Median error of the preset's virtual ranks on the measured collectives."""
    cluster, errors = made.fitted.cluster, []
    for sample in made.samples:
        if sample.what in ("all_reduce", "all_gather", "reduce_scatter"):
            own = sample.size / cluster.world_size if sample.what == "all_gather" else sample.size
            modelled = choose(sample.what, int(own), tuple(range(cluster.world_size)), cluster).seconds
            errors.append(abs(modelled / sample.seconds - 1))
    return median(errors) if errors else None


def _samples(made: Calibration) -> Table:
    table = Table("measured", "size", "median", "spread", "size / time", "fitted", "error")
    table.title = "what was measured; products are n x n x n"
    for one in made.samples:
        fitted = made.fitted.seconds.get(one)
        error = "" if fitted is None else f"{fitted / one.seconds - 1:+.0%}"
        shown = "" if fitted is None else duration(fitted)
        table.add_row(
            f"{one.what} {one.dtype}", one.label, duration(one.seconds), f"{one.spread:.0%}", _rate(one), shown, error
        )
    return table


def _rate(sample: Sample) -> str:
    if sample.what == "product":
        return f"{sample.size / sample.seconds / 1e12:.3g} TFLOP/s"
    if sample.what in ("launch", "layer", "optimizer"):
        return ""
    return f"{sample.size / sample.seconds / 1e9:.3f} GB/s"


def _quantities(made: Calibration) -> Table:
    table = Table(title="what it gives")
    for column in ("figure of the preset", "value", "unit", "spread", "misfit"):
        table.add_column(column, no_wrap=column != "unit")
    for one in made.fitted.quantities:
        error = "" if one.error is None else f"{one.error:.0%}"
        table.add_row(one.name, f"{one.value:.4g}", one.unit, f"{one.spread:.0%}", error)
    return table


def _checks(made: Calibration) -> Table:
    table = Table(box=None, pad_edge=False, title="a training step of an MLP, to which nothing was fitted")
    for column in ("ranks", "median", "quickest 10 %", "predicted", "ratio to both", "virtual", "ratio to both"):
        table.add_column(column, no_wrap=True)
    for one in made.checks:
        shown = [duration(one.measured_seconds), duration(one.quickest_seconds)]
        for seconds in (one.prediction.step_seconds, one.virtual_seconds):
            ratios = f"{seconds / one.measured_seconds:.2f}, {seconds / one.quickest_seconds:.2f}"
            shown += [duration(seconds), ratios]
        table.add_row(str(one.ranks), *shown)
    return table
