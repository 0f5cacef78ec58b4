"""Given parts of the exercise on scaling studies: measuring on part of the ranks, records, fits, reports.

Benchmark                      # the constructor; `measure` takes one configuration's times
now(device)                    # seconds, when all that was launched on the device is done
Workload, Measurement          # a rank's training step; what was measured of one configuration
ScalingPoint, Cost             # a measurement with its efficiency; an epoch's
fit_law, Fit                   # least squares, and the result
Row, report                    # a line of the report; Markdown, HTML, JSON, CSV
predicted                      # measurements by the formulas of `labkit.predict`
bus_bandwidths                 # GB/s of each collective, measured
append, read                   # the file of `labkit bench scaling`
"""

from labkit.course.phase4_production.monitoring.given.clocks import now
from labkit.course.phase4_production.scaling_study.given.arguments import (
    check_epoch,
    check_format,
    check_global_batch,
    check_strategy,
    check_study,
)
from labkit.course.phase4_production.scaling_study.given.bandwidth import bus_bandwidths
from labkit.course.phase4_production.scaling_study.given.benchmark import Benchmark, origin_here
from labkit.course.phase4_production.scaling_study.given.files import append, read
from labkit.course.phase4_production.scaling_study.given.laws import Fit, curve_name, fit_curves, fit_law
from labkit.course.phase4_production.scaling_study.given.predicted import predicted
from labkit.course.phase4_production.scaling_study.given.records import (
    ORIGINS,
    Cost,
    MakeWorkload,
    Measurement,
    Origin,
    Scaling,
    ScalingPoint,
    Workload,
)
from labkit.course.phase4_production.scaling_study.given.report import FORMATS, Row, in_words, report
from labkit.course.phase4_production.scaling_study.given.steps import made_at_first_call, optimizer_step
from labkit.course.phase4_production.scaling_study.given.studies import studies

__all__ = [
    "FORMATS",
    "ORIGINS",
    "Benchmark",
    "Cost",
    "Fit",
    "MakeWorkload",
    "Measurement",
    "Origin",
    "Row",
    "Scaling",
    "ScalingPoint",
    "Workload",
    "append",
    "bus_bandwidths",
    "check_epoch",
    "check_format",
    "check_global_batch",
    "check_strategy",
    "check_study",
    "curve_name",
    "fit_curves",
    "fit_law",
    "in_words",
    "made_at_first_call",
    "now",
    "optimizer_step",
    "origin_here",
    "predicted",
    "read",
    "report",
    "studies",
]
