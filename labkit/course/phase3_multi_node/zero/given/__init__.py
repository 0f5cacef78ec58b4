"""Given parts of the exercise on ZeRO and FSDP: argument checks, flat parameters and their shards, units of a model,
calls around them, states for any number of ranks, optimizers whose state is in host memory or in files, and training as
a `ZeROConfig` says, by torch's `fully_shard` and by DeepSpeed.
"""

from labkit.course.phase3_multi_node.zero.given.arguments import require_max_norm, require_memory
from labkit.course.phase3_multi_node.zero.given.config import ZeROConfig
from labkit.course.phase3_multi_node.zero.given.deepspeed_adapter import initialize_deepspeed
from labkit.course.phase3_multi_node.zero.given.deepspeed_config import create_deepspeed_config
from labkit.course.phase3_multi_node.zero.given.disk_optimizer import DiskOptimizer
from labkit.course.phase3_multi_node.zero.given.flat_parameters import FlatParameters, on_device
from labkit.course.phase3_multi_node.zero.given.fsdp_trainer import FSDPTrainer
from labkit.course.phase3_multi_node.zero.given.host_optimizer import HostOptimizer
from labkit.course.phase3_multi_node.zero.given.optimizer_state import no_grad_loss
from labkit.course.phase3_multi_node.zero.given.sharded_module import ShardedModule
from labkit.course.phase3_multi_node.zero.given.sharded_optimizer import ShardedOptimizer
from labkit.course.phase3_multi_node.zero.given.sharding import Sharding
from labkit.course.phase3_multi_node.zero.given.units import Unit
from labkit.course.phase3_multi_node.zero.given.zero_trainer import ZeROTrainer
from labkit.torch_versions.collectives import all_gather_single, reduce_scatter_single

__all__ = [
    "DiskOptimizer",
    "FSDPTrainer",
    "FlatParameters",
    "HostOptimizer",
    "ShardedModule",
    "ShardedOptimizer",
    "Sharding",
    "Unit",
    "ZeROConfig",
    "ZeROTrainer",
    "all_gather_single",
    "create_deepspeed_config",
    "initialize_deepspeed",
    "no_grad_loss",
    "on_device",
    "reduce_scatter_single",
    "require_max_norm",
    "require_memory",
]
