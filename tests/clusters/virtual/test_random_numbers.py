"""Random numbers of virtual ranks equal those of processes: each rank has its own, whatever runs in between."""

from __future__ import annotations

import pytest

from labkit import Job, local, virtual

HEAD = """\
import os, random, numpy, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
def meet(): dist.barrier()
"""

PROGRAMS = {
    "torch": """
torch.rand(2); meet()
torch.manual_seed(rank); out = [torch.rand(2).tolist()]; meet()
out += [torch.randperm(5).tolist(), torch.initial_seed()]; meet()
state = torch.get_rng_state(); a = torch.randn(1).item(); meet(); torch.set_rng_state(state)
with torch.random.fork_rng():
    meet(); torch.rand(3); meet()
x = torch.empty(3); meet(); torch.nn.init.normal_(x); meet()
out.append(torch.bernoulli(torch.full((4,), 0.5)).tolist())
out, a == torch.randn(1).item(), x.tolist(), torch.rand(1).item()
""",
    "random and numpy": """
random.seed(rank); numpy.random.seed(10 + rank); meet()
out = [random.random(), numpy.random.rand(2).tolist()]; meet()
a = list(range(6)); random.shuffle(a); meet(); out += [a, random.sample(range(100), 3), random.gauss(0, 1)]
from random import choice
meet(); state = random.getstate(), numpy.random.get_state(); meet()
pair = random.random(), numpy.random.normal(); meet()
random.setstate(state[0]); numpy.random.set_state(state[1]); meet()
out, choice(a), pair == (random.random(), numpy.random.normal()), numpy.random.permutation(5).tolist()
""",
    "dropout in DDP": """
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
torch.manual_seed(100 + rank)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
losses = []
for step in range(3):
    loss = model(torch.randn(4, 6)).pow(2).mean(); optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.item())
losses
""",
    "a thread of its own": """
import threading
torch.manual_seed(rank); got = [torch.rand(1).item()]
def draw(): got.extend(torch.rand(3).tolist() + [torch.randn(1).item()])
thread = threading.Thread(target=draw); thread.start(); meet(); thread.join(); meet()
got, torch.rand(1).item()
""",
    "data loader": """
from torch.utils.data import DataLoader, TensorDataset, random_split
torch.manual_seed(rank)
data = TensorDataset(torch.arange(8))
out = []
for generator in (None, torch.Generator().manual_seed(5 + rank)):
    batches = []
    for (batch,) in DataLoader(data, 3, shuffle=True, generator=generator):
        batches.append(batch.tolist()); meet()
    out.append(batches)
parts = [list(part.indices) for part in random_split(data, [5, 3])]; meet()
out, parts, torch.rand(1).item()
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_numbers_as_in_processes(name: str) -> None:
    source = HEAD + PROGRAMS[name]
    real = local(nproc_per_node=3).run(Job(source=source)).raise_if_failed().values
    assert virtual(nproc_per_node=3).run(Job(source=source)).raise_if_failed().values == real
    assert virtual(nproc_per_node=3, account=False).run(Job(source=source)).raise_if_failed().values == real
    assert virtual(nproc_per_node=3, ranks="processes").run(Job(source=source)).raise_if_failed().values == real


def test_unseeded_numbers_differ_by_rank_and_repeat_from_run_to_run() -> None:
    source = HEAD + "meet(); (random.random(), numpy.random.rand(), random.getrandbits(40)), torch.rand(1).item()"
    runs = [
        virtual(nproc_per_node=3, ranks=ranks).run(Job(source=source)).raise_if_failed().values  # type: ignore[arg-type]
        for ranks in ("threads", "threads", "processes")
    ]
    assert runs[0] == runs[1] == runs[2]
    assert len({mine for mine, _ in runs[0]}) == 3 and len({torchs for _, torchs in runs[0]}) == 3


def test_unseeded_numbers_differ_between_processes() -> None:
    source = "import torch\ntorch.initial_seed(), torch.rand(1).item()"
    first, second = (local(nproc_per_node=2).run(Job(source=source)).raise_if_failed().values for _ in range(2))
    assert len({*first, *second}) == 4


def test_seeds_of_loader_workers() -> None:
    source = (
        HEAD
        + """
from torch.utils.data import DataLoader, Dataset
class Noise(Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return torch.tensor([torch.rand(1).item(), random.random(), numpy.random.rand()])
torch.manual_seed(rank)
[batch.tolist() for batch in DataLoader(Noise(), 2, num_workers=2)], torch.rand(1).item()
"""
    )
    real = local(nproc_per_node=2).run(Job(source=source)).raise_if_failed().values
    assert virtual(nproc_per_node=2).run(Job(source=source)).raise_if_failed().values == real
