"""Arguments of `DistributedDataParallel`, `DDPTrainer` and `DDPCheckpointer`, checked before any message is sent."""

from __future__ import annotations

import os
from typing import Any

from torch import nn
from torch.distributed import ProcessGroup

from labkit.course.arguments import Rule, positive, require, trained_module
from labkit.course.collective_arguments import require_this_rank

_FILE = Rule(
    "be the name of a file",
    lambda value: isinstance(value, (str, os.PathLike)) and os.path.basename(os.fspath(value)) != "",
)


def require_ddp(module: nn.Module, bucket_cap_mb: float, group: ProcessGroup | None) -> None:
    """Raise `ValueError` unless `module` has a parameter that is trained, `bucket_cap_mb` is above 0, and `group` has
    this rank."""
    require_this_rank(group)
    require("module", module, trained_module)
    require("bucket_cap_mb", bucket_cap_mb, positive)


def require_path(path: Any) -> str:
    """Return `path` as text. Raises `ValueError` unless it names a file in a folder that may exist."""
    require("path", path, _FILE)
    return str(os.fspath(path))
