"""DistributedDataParallel in each variant: losses, then sums of parameters and buffers, by name of the variant."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()


class Net(torch.nn.Module):
    """A net that trips careless code: buffers, a frozen layer, dropout, a tied weight, a layer that may go unused."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8, bias=False)
        self.norm = torch.nn.BatchNorm1d(8)
        self.tied = torch.nn.Linear(8, 8)
        self.frozen = torch.nn.Linear(8, 8).requires_grad_(False)
        self.detour = torch.nn.Linear(8, 8)
        self.drop = torch.nn.Dropout(0.2)
        self.last = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, detour: bool) -> torch.Tensor:
        h = self.tied(self.frozen(self.tied(self.norm(self.first(x))).relu()))
        return self.last(self.drop(self.detour(h) if detour else h))


def train(
    hook: tuple[Any, Callable[..., Any]] | None = None,
    accumulate: int = 1,
    detour: bool = True,
    zero: bool = False,
    uneven: bool = False,
    **options: Any,
) -> list[list[float]]:
    torch.manual_seed(rank)  # DDP has to broadcast rank 0's weights
    model = DistributedDataParallel(Net(), **options)
    if hook is not None:
        model.register_comm_hook(*hook)
    optimizer: torch.optim.Optimizer = (
        ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
        if zero
        else torch.optim.SGD(model.parameters(), lr=0.1)
    )
    torch.manual_seed(10 + rank)
    losses = []

    def step() -> None:
        for microbatch in range(accumulate):
            model.require_backward_grad_sync = microbatch + 1 == accumulate  # what no_sync() sets
            loss = model(torch.randn(4, 6), detour).pow(2).mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()

    if uneven:
        with Join([model, optimizer] if zero else [model]):  # type: ignore[list-item]  # the optimizer is a Joinable
            for _ in range(2 + rank):
                step()
    else:
        for _ in range(4):
            step()
    return [
        losses,
        [p.detach().double().sum().item() for p in model.parameters()],
        [b.double().sum().item() for b in model.buffers()],
    ]


def accumulated_without_sync() -> list[list[float]]:
    """The same sums as with a batch as large as both: the first backward pass of each pair does not communicate."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(6, 3))
    gradients = []
    for step in range(2):
        with model.no_sync():
            model(torch.full((2, 6), rank + step + 1.0)).sum().backward()
        gradients.append(model.module.weight.grad.sum().item())
        model(torch.full((2, 6), rank + step + 2.0)).sum().backward()
        gradients.append(model.module.weight.grad.sum().item())
        model.zero_grad()
    return [gradients]


def averaged(state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """A learner's own hook."""
    reducing = dist.all_reduce(bucket.buffer(), async_op=True)
    return reducing.get_future().then(lambda done: done.value()[0] / n)


def gathered(state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """The same by other means: the value of a collective's future, and a future completed by hand."""
    everyone = [torch.empty_like(bucket.buffer()) for _ in range(n)]
    values = dist.all_gather(everyone, bucket.buffer(), async_op=True).get_future().wait()
    future: Future[torch.Tensor] = Future()
    future.set_result(torch.stack(values).mean(0))
    return future


def told_when_a_parameter_got_no_gradient() -> str:
    try:
        train(detour=False)
    except RuntimeError as error:
        return str(error)[:250]
    return "nothing was said"


power_sgd = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
ways: dict[str, Callable[[], Any]] = {
    "plain": train,
    "small buckets": lambda: train(bucket_cap_mb=0.0001),
    "gradients are views of buckets": lambda: train(gradient_as_bucket_view=True),
    "buffers are not broadcast": lambda: train(forward_sync_buffers=False),
    "gradient accumulation": lambda: train(accumulate=3),
    "no_sync": accumulated_without_sync,
    "unused parameters": lambda: train(detour=False, find_unused_parameters=True),
    "static graph": lambda: train(static_graph=True),
    "static graph, unused parameters": lambda: train(detour=False, static_graph=True),
    "uneven inputs": lambda: train(uneven=True),
    "allreduce_hook": lambda: train(hook=(None, default_hooks.allreduce_hook)),
    "fp16_compress_hook": lambda: train(hook=(None, default_hooks.fp16_compress_hook)),
    # gloo runs this hook's callbacks in its own threads: with more than one bucket, ranks disagree on their order
    "powerSGD_hook": lambda: train(hook=(power_sgd, powerSGD_hook.powerSGD_hook)),
    "own hook, then": lambda: train(hook=(None, averaged)),
    "own hook, other collective": lambda: train(hook=(None, gathered), bucket_cap_mb=0.0001),
    "ZeroRedundancyOptimizer": lambda: train(zero=True),
    "ZeroRedundancyOptimizer, uneven inputs": lambda: train(zero=True, uneven=True),
    "no gradient": told_when_a_parameter_got_no_gradient,
}
{name: way() for name, way in ways.items()}
