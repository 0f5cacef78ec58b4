"""Programs on ranks of parameter_server's checks: servers, workers, and parameters divided among servers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def pieces_of(sizes: list[int], dtypes: list[str], num_servers: int) -> list[list[list[int]]]:
    """On a rank: return the pieces of parameters with these numbers of elements, for each server."""
    from labkit.exercises import parameter_server

    parameters = [torch.zeros(size, dtype=getattr(torch, dtype)) for size, dtype in zip(sizes, dtypes, strict=True)]
    shards = parameter_server.partition(parameters, num_servers)
    return [[[int(number) for number in piece] for piece in shard] for shard in shards]


def played(
    initial: list[Tensor],
    steps: list[list[Tensor | None]],
    samples: list[int],
    num_servers: int,
    mode: str,
    staleness: int | None,
    optimizer: tuple[str, dict[str, Any]],
    towards: bool,
    step: Any,
) -> list[list[Tensor]] | None:
    """On a rank: serve; or make the steps, and return the weights after each pull, one at the end too.

    optimizer: name in `torch.optim`, and arguments. towards: the gradient is the way from the step's tensors to the
    weights; otherwise it is the step's tensors, None where a parameter has none. step: called in each step, unless it
    is None.
    """
    from labkit.exercises import parameter_server

    weights = [values.clone().requires_grad_() for values in initial]
    if dist.get_rank() < num_servers:
        kind, arguments = optimizer
        make = partial(getattr(torch.optim, kind), **arguments)
        parameter_server.ParameterServer(weights, make, num_servers, mode, staleness).serve()
        return None
    pulled = []
    with parameter_server.Worker(weights, num_servers) as worker:
        for count, tensors in zip(samples, steps, strict=True):
            worker.pull()
            pulled.append([weight.detach().clone() for weight in weights])
            if step is not None:
                step()
            for weight, tensor in zip(weights, tensors, strict=True):
                if tensor is None:
                    weight.grad = None
                else:
                    weight.grad = weight.detach() - tensor if towards else tensor.clone()
            worker.push(count)
        worker.pull()
        pulled.append([weight.detach().clone() for weight in weights])
    return pulled
