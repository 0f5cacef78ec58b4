import torch
import torch.distributed as dist
from torch.distributed.fsdp import ShardingStrategy
from torch.testing._internal import common_fsdp
from torch.testing._internal.common_fsdp import DEVICEInitMode, FSDPInitMode
from torch.testing._internal.common_utils import TestCase

losses = []


class Parity(common_fsdp.FSDPTestMixin, TestCase):
    """The body that torch's FSDP tests call: trains with DDP and with FSDP, and compares losses and parameters."""

    @property
    def process_group(self):
        return dist.group.WORLD

    def _train_for_several_steps(self, *args, **options):
        loss = super()._train_for_several_steps(*args, **options)
        losses.append(loss.item())
        return loss


dist.init_process_group("gloo")
models = ("TransformerWithSharedParams", "NestedWrappedModule", "AlwaysWrapNestedWrappedModule")
for name in models:
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        Parity()._test_fsdp_parity(
            getattr(common_fsdp, name),
            FSDPInitMode.RECURSIVE,
            DEVICEInitMode.DEVICE_BEFORE,
            sharding_strategy=strategy,
            device_id=torch.device("cpu"),
        )
dist.get_rank(), losses
