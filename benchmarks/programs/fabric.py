import os

import lightning
import torch

fabric = lightning.Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp")
fabric.launch()
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
generator = torch.Generator().manual_seed(fabric.global_rank)
losses = []
for _ in range(4):
    loss = model(torch.randn(4, 8, generator=generator)).pow(2).mean()
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(fabric.all_reduce(loss.detach()).item())
fabric.global_rank, losses
