import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.common_fsdp import MLPStack
from torch.testing._internal.distributed._tensor.common_dtensor import MLPModule

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
losses = []
torch.manual_seed(0)
sharded = MLPStack(16)
for block in sharded:
    fully_shard(block, mesh=mesh)
fully_shard(sharded, mesh=mesh)
split = parallelize_module(MLPModule("cpu"), mesh, {"net1": ColwiseParallel(), "net2": RowwiseParallel()})
for model, width, seed in ((sharded, 16, dist.get_rank()), (split, 10, 0)):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        loss = model(torch.randn(4, width, generator=generator)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
dist.get_rank(), losses
