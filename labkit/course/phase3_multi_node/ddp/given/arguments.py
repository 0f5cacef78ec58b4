"""Arguments of `DistributedDataParallel`, `DDPTrainer` and `DDPCheckpointer`, checked before any message is sent."""

from __future__ import annotations

import os
from typing import Any

from torch import nn
from torch.distributed import ProcessGroup

from labkit.course.collective_arguments import group_ranks
from labkit.course.number_arguments import require_positive


def require_ddp(module: nn.Module, bucket_cap_mb: float, group: ProcessGroup | None) -> None:
    """Raise `ValueError` unless `module` has a parameter that is trained, `bucket_cap_mb` is above 0, and `group` has
    this rank."""
    group_ranks(group)
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(f"module must have a parameter that is trained, got {type(module).__name__} without one")
    require_positive("bucket_cap_mb", bucket_cap_mb)


def require_path(path: Any) -> str:
    """Return `path` as text. Raises `ValueError` unless it names a file in a folder that may exist."""
    if not isinstance(path, (str, os.PathLike)) or not os.path.basename(os.fspath(path)):
        raise ValueError(f"path must be the name of a file, got {path!r}")
    return str(os.fspath(path))
