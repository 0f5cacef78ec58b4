"""Given parts of the exercise on monitoring: argument checks, records of steps, one gather, and sinks.

Monitor                                 # the constructor: arguments, history of summaries, recorder
words(tensor)                           # the bits of each element as int64
named_tensors(model)                    # its parameters and their gradients by name
gather_rows(row, group)                 # a row of every rank, in one all-gather
gather_summaries(summary, ...)          # the same for the figures of an interval
pass_around(source, destination, ...)   # a message around the ring
JsonLines, StructuredLog, PrometheusSink, TensorBoardSink     # sinks; json_lines.py describes the format
Metrics                                 # where a training program writes: its options, and the monitor with those sinks
"""

from labkit.course.phase4_production.monitoring.given.arguments import check_baseline, check_nbytes, check_step
from labkit.course.phase4_production.monitoring.given.clocks import now
from labkit.course.phase4_production.monitoring.given.exchange import gather_rows, gather_summaries, pass_around
from labkit.course.phase4_production.monitoring.given.fingerprints import named_tensors, words
from labkit.course.phase4_production.monitoring.given.json_lines import JsonLines, read_folder
from labkit.course.phase4_production.monitoring.given.metrics import Metrics
from labkit.course.phase4_production.monitoring.given.monitor import Monitor
from labkit.course.phase4_production.monitoring.given.prometheus import PrometheusSink
from labkit.course.phase4_production.monitoring.given.recorder import Recorder, Step
from labkit.course.phase4_production.monitoring.given.records import (
    Alarm,
    Evaluation,
    Sink,
    StepRecord,
    Summary,
    first_steps,
    loss_alarms,
)
from labkit.course.phase4_production.monitoring.given.structured_log import StructuredLog
from labkit.course.phase4_production.monitoring.given.tensorboard import TensorBoardSink

__all__ = [
    "Alarm",
    "Evaluation",
    "JsonLines",
    "Metrics",
    "Monitor",
    "PrometheusSink",
    "Recorder",
    "Sink",
    "Step",
    "StepRecord",
    "StructuredLog",
    "Summary",
    "TensorBoardSink",
    "check_baseline",
    "check_nbytes",
    "check_step",
    "first_steps",
    "gather_rows",
    "gather_summaries",
    "loss_alarms",
    "named_tensors",
    "now",
    "pass_around",
    "read_folder",
    "words",
]
