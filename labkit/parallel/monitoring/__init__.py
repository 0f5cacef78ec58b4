"""Given parts of the exercise on monitoring: argument checks, clocks, records, one gather, and sinks.

clock = clock_of(device)                # clock.mark(); clock.seconds(begin, end): on a GPU by its own events
words(tensor)                           # the bits of each element as int64
named_tensors(model)                    # its parameters and their gradients by name
gather_rows(row, group)                 # a row of every rank, in one all-gather
gather_summaries(summary, ...)          # the same for the figures of an interval
receive_from(source, destination, ...)  # a message around the ring
"""

from labkit.parallel.monitoring.arguments import (
    check_baseline,
    check_monitor,
    check_nbytes,
    check_part,
    check_step,
)
from labkit.parallel.monitoring.clocks import clock_of, gpu_percent, memory_allocated
from labkit.parallel.monitoring.exchange import gather_rows, gather_summaries, receive_from
from labkit.parallel.monitoring.fingerprints import named_tensors, words
from labkit.parallel.monitoring.json_lines import JsonLines, read_folder
from labkit.parallel.monitoring.prometheus import PrometheusSink
from labkit.parallel.monitoring.records import Alarm, Alarms, Pending, Sink, StepRecord, Summary
from labkit.parallel.monitoring.structured_log import StructuredLog
from labkit.parallel.monitoring.tensorboard import TensorBoardSink

__all__ = [
    "Alarm",
    "Alarms",
    "JsonLines",
    "Pending",
    "PrometheusSink",
    "Sink",
    "StepRecord",
    "StructuredLog",
    "Summary",
    "TensorBoardSink",
    "check_baseline",
    "check_monitor",
    "check_nbytes",
    "check_part",
    "check_step",
    "clock_of",
    "gather_rows",
    "gather_summaries",
    "gpu_percent",
    "memory_allocated",
    "named_tensors",
    "read_folder",
    "receive_from",
    "words",
]
