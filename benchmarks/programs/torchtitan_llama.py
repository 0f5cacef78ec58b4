import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.config import JobConfig
from torchtitan.distributed import parallel_dims
from torchtitan.models.llama3 import Transformer, TransformerModelArgs, parallelize_llama

parallel_dims.device_type = "cpu"  # its default without a GPU is "cuda"
dist.init_process_group("gloo")
size = dist.get_world_size()
losses = []
for shards, tensor_parallel in ((size, 1), (1, size)):
    dims = parallel_dims.ParallelDims(
        dp_replicate=1, dp_shard=shards, cp=1, tp=tensor_parallel, pp=1, ep=1, etp=1, world_size=size
    )
    config = JobConfig()
    config.training.seq_len = 16
    config.training.mixed_precision_param = "float32"
    config.activation_checkpoint.mode = "none"
    config.parallelism.disable_loss_parallel = True
    torch.manual_seed(0)
    model = Transformer(TransformerModelArgs(dim=32, n_layers=2, n_heads=2, vocab_size=64, max_seq_len=16))
    with torch.no_grad():
        model.init_weights()
    model = parallelize_llama(model, dims, config)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no PREMUL_SUM
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(dist.get_rank() if shards > 1 else 0)
    for _ in range(3):
        tokens = torch.randint(64, (2, 17), generator=generator)
        loss = cross_entropy_loss(model(tokens[:, :-1]), tokens[:, 1:]) / 32
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / size)
dist.get_rank(), losses
