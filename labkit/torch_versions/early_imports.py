"""Modules of torch that ranks use, imported before ranks are forked so that none has to import them."""

import torch._dynamo  # imported by DistributedDataParallel on first use
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.nn.parallel
import torch.optim  # noqa: F401
