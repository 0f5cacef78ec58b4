"""An optimizer whose state is in files, as ZeRO-Infinity keeps it on NVMe drives (Rajbhandari et al. 2021)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from labkit.clusters.device import node_storage, read, to_device, to_host, write
from labkit.course.phase3_multi_node.zero.given.optimizer_state import no_grad_loss


class DiskOptimizer(Optimizer):
    """Steps one parameter after another with `optimizer_class`; between two steps the state is in `folder`.

    Memory holds the state of one parameter at a time. The folder is this rank's own: `folder/RANK` by the environment.
    Use it for shards in host memory, or in the place of an optimizer's class:

        ZeroOptimizer(parameters, functools.partial(DiskOptimizer, optimizer_class=AdamW, folder="/nvme"), stage=2)
    """

    def __init__(
        self, params: Iterable[Any], optimizer_class: Callable[..., Optimizer], folder: str | Path, **options: Any
    ) -> None:
        self._inner = optimizer_class(params, **options)
        super().__init__(self._inner.param_groups, self._inner.defaults)
        self.param_groups = self._inner.param_groups
        self.folder = Path(folder) / os.environ.get("RANK", "0")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._written: set[nn.Parameter] = set()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step each parameter that has a gradient: read its state, step, write its state."""
        loss = no_grad_loss(closure)
        groups = self._inner.param_groups
        number = 0
        for group in groups:
            for parameter in group["params"]:
                number += 1
                if parameter.grad is None:
                    continue
                path = self.folder / f"{number}.pt"
                storage = node_storage() if getattr(parameter, "in_file", False) else None
                if storage is not None:
                    storage.read(parameter.nbytes)
                if parameter in self._written:
                    self._inner.state[parameter] = self._moved(read(path), parameter, to_device)
                self._inner.param_groups = [{**group, "params": [parameter]}]
                self._inner.step()
                write(self._moved(self._inner.state.pop(parameter), parameter, to_host), path)
                self._written.add(parameter)
                if storage is not None:
                    storage.write(parameter.nbytes)
        self._inner.param_groups = groups
        return loss

    def _moved(self, state: dict[str, Any], parameter: Tensor, move: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Return the state, with its tensors moved unless the parameter itself is in host memory."""
        if getattr(parameter, "in_host_memory", False):
            return dict(state)
        alike = parameter.shape
        return {n: move(v) if isinstance(v, Tensor) and v.shape == alike else v for n, v in state.items()}
