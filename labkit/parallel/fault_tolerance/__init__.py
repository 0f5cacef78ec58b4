"""Given parts of the exercise on fault tolerance: global batches, the journal, launches, simulated failures.

GlobalBatchSampler(dataset_size, global_batch_size, num_replicas, rank)    # the same batches at every world size
Journal(path)                          # a line for each start and each step
ElasticConfig(program, ...)            # of an elastic launch; ElasticRun: what comes back
simulated_goodput(...), LLAMA_3        # failures one by one; published failure rates
"""

from labkit.parallel.fault_tolerance.arguments import check_failures, check_goodput, check_training, checkpoint_folder
from labkit.parallel.fault_tolerance.config import ElasticConfig, ElasticRun
from labkit.parallel.fault_tolerance.global_batches import GlobalBatchSampler
from labkit.parallel.fault_tolerance.journal import Attempt, Journal, restart_count
from labkit.parallel.fault_tolerance.simulation import LLAMA_3, FailureRate, Intervals, simulated_goodput
from labkit.parallel.fault_tolerance.training import RepeatedCrash, batches, gradients, start_equal
from labkit.parallel.local_sgd.messages import Message

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
