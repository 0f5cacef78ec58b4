"""Four steps of FSDP2 with a checkpoint in the middle; or the last two, from a checkpoint made on any number of ranks.

All ranks see the same data, so losses do not depend on their number.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 4))
for layer in (*model, model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)


def steps(first: int, last: int) -> list[float]:
    losses = []
    for step in range(first, last):
        torch.manual_seed(step)
        loss = model(torch.randn(4, 6)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def state() -> dict[str, object]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "step": 2}


losses = []
match os.environ["ACTION"]:
    case "save":
        losses += steps(0, 2)
        dcp.save(state(), checkpoint_id=os.environ["FOLDER"])
    case "save later":
        losses += steps(0, 2)
        saving = dcp.async_save(state(), checkpoint_id=os.environ["FOLDER"])
        losses += steps(2, 3)
        saving.result()
        losses += steps(3, 4)
    case "load":
        loaded = state()
        dcp.load(loaded, checkpoint_id=os.environ["FOLDER"])
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
if os.environ["ACTION"] != "save later":
    losses += steps(2, 4)
losses.copy()
