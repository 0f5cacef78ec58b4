"""Given parts of the exercise on fault tolerance: global batches, the journal, launches, simulated failures.

GlobalBatchSampler(dataset_size, global_batch_size, num_replicas, rank)    # the same batches at every world size
Journal(path)                          # a line for each start and each step
ElasticConfig(program, ...)            # settings of an elastic launch; ElasticRun: its result
simulated_goodput(...), LLAMA_3        # failures one by one; published failure rates
"""

from labkit.course.phase3_multi_node.local_sgd.given.messages import Message
from labkit.course.phase4_production.fault_tolerance.given.arguments import (
    check_failures,
    check_goodput,
    check_training,
    checkpoint_folder,
)
from labkit.course.phase4_production.fault_tolerance.given.config import ElasticConfig, ElasticRun
from labkit.course.phase4_production.fault_tolerance.given.global_batches import GlobalBatchSampler
from labkit.course.phase4_production.fault_tolerance.given.journal import Attempt, Journal, restart_count
from labkit.course.phase4_production.fault_tolerance.given.simulation import (
    LLAMA_3,
    FailureRate,
    Intervals,
    simulated_goodput,
)
from labkit.course.phase4_production.fault_tolerance.given.training import (
    RepeatedCrash,
    batches,
    gradients,
    start_equal,
)

__all__ = [
    "LLAMA_3",
    "Attempt",
    "ElasticConfig",
    "ElasticRun",
    "FailureRate",
    "GlobalBatchSampler",
    "Intervals",
    "Journal",
    "Message",
    "RepeatedCrash",
    "batches",
    "check_failures",
    "check_goodput",
    "check_training",
    "checkpoint_folder",
    "gradients",
    "restart_count",
    "simulated_goodput",
    "start_equal",
]
