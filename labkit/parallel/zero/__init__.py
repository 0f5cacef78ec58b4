"""Given parts of the exercise on ZeRO and FSDP: argument checks, flat parameters and their shards, units of a model,
calls around them, states for any number of ranks, an optimizer whose state is in files, and training by torch's
`fully_shard` and by DeepSpeed.
"""

from labkit.parallel.zero.arguments import require_max_norm, require_memory
from labkit.parallel.zero.config import ZeROConfig
from labkit.parallel.zero.deepspeed_adapter import initialize_deepspeed
from labkit.parallel.zero.deepspeed_config import create_deepspeed_config
from labkit.parallel.zero.disk_optimizer import DiskOptimizer
from labkit.parallel.zero.flat_parameters import FlatParameters, on_device
from labkit.parallel.zero.fsdp_trainer import FSDPTrainer
from labkit.parallel.zero.optimizer_state import no_grad_loss
from labkit.parallel.zero.sharded_module import ShardedModule
from labkit.parallel.zero.sharded_optimizer import ShardedOptimizer
from labkit.parallel.zero.sharding import Sharding
from labkit.parallel.zero.units import Unit
from labkit.torch_versions.collectives import all_gather_single, reduce_scatter_single

__all__ = [
    "DiskOptimizer",
    "FSDPTrainer",
    "FlatParameters",
    "ShardedModule",
    "ShardedOptimizer",
    "Sharding",
    "Unit",
    "ZeROConfig",
    "all_gather_single",
    "create_deepspeed_config",
    "initialize_deepspeed",
    "no_grad_loss",
    "on_device",
    "reduce_scatter_single",
    "require_max_norm",
    "require_memory",
]
