import deepspeed
import torch
import torch.distributed as dist

deepspeed.init_distributed("gloo")
all_losses = []
for stage in (1, 2, 3):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(3):
        loss = engine(torch.randn(4, 8, generator=generator)).pow(2).mean()
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        all_losses.append(mean.item() / dist.get_world_size())
engine.global_rank, all_losses
