"""The trainer's solution: for any shares, reduction and model, the steps equal those of one process."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from waiting import BROKEN_SECONDS

from labkit import Job, exercises, local, virtual
from labkit.catalogue import Exercise

EXERCISE = Exercise("phase1_data_parallel/trainer")
MODULES = {one.name: one.source("solution")[0] for one in (*EXERCISE.builds_on, EXERCISE)}

STEPS = """
import torch
import torch.distributed as dist
from torch import nn
from labkit.exercises import trainer

dist.init_process_group()
rank = dist.get_rank()
torch.manual_seed({seed} + rank)
model = nn.Sequential(nn.Linear({features}, 4), nn.Tanh(), nn.Linear(4, 3))
training = trainer.DataParallelTrainer(
    model, torch.optim.Adam(model.parameters(), eps=0.01), nn.functional.cross_entropy, reduction="{reduction}"
)
generator = torch.Generator().manual_seed({seed})
losses = []
for shares in {shares}:
    inputs = torch.randn(sum(shares), {features}, generator=generator)
    targets = torch.randint(0, 3, (sum(shares),), generator=generator)
    begin = sum(shares[:rank])
    mine = slice(begin, begin + shares[rank])
    losses.append(training.train_step((inputs[mine], targets[mine])).loss)
[losses, [p.detach() for p in model.parameters()]]
"""


@settings(max_examples=6)
@given(
    shares=st.integers(1, 5).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 4), min_size=n, max_size=n).filter(lambda sizes: sum(sizes) > 0),
            min_size=1,
            max_size=3,
        )
    ),
    features=st.integers(1, 6),
    reduction=st.sampled_from(["per_parameter", "flat", "gather_scatter", "tree"]),
    seed=st.integers(0, 2**31),
)
def test_any_shares_train_like_one_process(shares: list[list[int]], features: int, reduction: str, seed: int) -> None:
    def trained(shares: list[list[int]]) -> list[tuple[list[float], list[torch.Tensor]]]:
        cell = STEPS.format(shares=shares, features=features, reduction=reduction, seed=seed)
        run = virtual(nproc_per_node=len(shares[0])).run(Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS))
        return run.raise_if_failed().values

    ((wanted_losses, wanted_weights),) = trained([[sum(sizes)] for sizes in shares])
    for losses, weights in trained(shares):
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted_losses), rtol=1e-4, atol=1e-5)
        for seen, wanted in zip(weights, wanted_weights, strict=True):
            torch.testing.assert_close(seen, wanted, rtol=1e-4, atol=1e-5)


BESIDE_DDP = """
import copy
import torch
import torch.distributed as dist
from torch import nn
from labkit.exercises import trainer

dist.init_process_group()
torch.manual_seed(0)
mine = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
theirs = copy.deepcopy(mine)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (mine, theirs)]
training = trainer.DataParallelTrainer(mine, optimizers[0], nn.functional.mse_loss)
library = nn.parallel.DistributedDataParallel(theirs)
for step in range(3):
    inputs, targets = torch.randn(4, 5), torch.randn(4, 3)
    training.train_step((inputs, targets))
    optimizers[1].zero_grad()
    nn.functional.mse_loss(library(inputs), targets).backward()
    optimizers[1].step()
[[p.detach() for p in model.parameters()] for model in (mine, theirs)]
"""


def test_equal_shares_train_like_torchs_ddp() -> None:
    run = local(nproc_per_node=3).run(Job(source=BESIDE_DDP, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed()
    for mine, theirs in run.values:
        for seen, wanted in zip(mine, theirs, strict=True):
            torch.testing.assert_close(seen, wanted)


def test_no_sample_anywhere_changes_nothing() -> None:
    cell = STEPS.format(shares=[[0, 0]], features=2, reduction="flat", seed=1)
    run = virtual(nproc_per_node=2).run(Job(source=cell, modules=MODULES, timeout=BROKEN_SECONDS)).raise_if_failed()
    torch.manual_seed(1)
    start = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
    for (loss,), weights in run.values:
        assert loss != loss
        assert all(torch.equal(seen, wanted) for seen, wanted in zip(weights, start.parameters(), strict=True))


def test_the_learning_rate_of_a_larger_batch() -> None:
    scaled = exercises.load(EXERCISE, MODULES[EXERCISE.name]).scaled_learning_rate
    rates = [scaled(0.1, 8192, step, warmup_steps=5) for step in range(7)]
    torch.testing.assert_close(torch.tensor(rates), torch.tensor([0.1, 0.72, 1.34, 1.96, 2.58, 3.2, 3.2]))
    assert scaled(0.1, 64, 0) == 0.025
