import torch.distributed as dist
from torchtitan.distributed.parallel_dims import ParallelDims

dist.init_process_group("gloo")
size = dist.get_world_size()
ParallelDims(dp_replicate=1, dp_shard=size, cp=1, tp=1, pp=1, ep=1, etp=1, world_size=size).build_mesh()
dist.get_rank(), []
