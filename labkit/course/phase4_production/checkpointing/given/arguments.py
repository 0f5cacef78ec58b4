"""Argument checks of checkpointing. Each raises `ValueError` with the argument's name; none sends anything."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.course.collective_arguments import group_ranks
from labkit.course.number_arguments import require_integer, require_positive
from labkit.course.phase4_production.checkpointing.given.object_storage import FsspecStorage
from labkit.course.phase4_production.checkpointing.given.storage import LocalStorage, Storage

FORMATS, MODES = ("sharded", "full"), ("min", "max")


def check_options(
    keep_last_n: Any, checkpoint_interval_minutes: Any, format: Any, metric: Any, mode: Any, storage: Any
) -> None:
    """Check the arguments of a `DistributedCheckpointer`."""
    require_integer("keep_last_n", keep_last_n, at_least=1)
    require_positive("checkpoint_interval_minutes", checkpoint_interval_minutes)
    for name, value, known in (("format", format, FORMATS), ("mode", mode, MODES)):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    if metric is not None and not isinstance(metric, str):
        raise ValueError(f"metric must be a name in metrics, or None, got {metric!r}")
    if storage is not None and not isinstance(storage, Storage):
        raise ValueError(f"storage must be a Storage, got {storage!r}")


def storage_at(checkpoint_dir: Any, format: str, group: ProcessGroup | None) -> Storage:
    """Return the storage at a path or at an address of fsspec."""
    ranks = len(group_ranks(group))
    if not isinstance(checkpoint_dir, (str, Path)) or not str(checkpoint_dir):
        raise ValueError(f"checkpoint_dir must be a path or an address of fsspec, got {checkpoint_dir!r}")
    if re.match(r"[a-z][a-z0-9+]*://", str(checkpoint_dir)):
        return FsspecStorage(str(checkpoint_dir))
    return LocalStorage(checkpoint_dir, writers=ranks if format == "sharded" else 1)


def check_save(step: Any, components: Any, metrics: Any, metric: str | None) -> None:
    """Check the arguments of a save."""
    require_integer("step", step, at_least=0)
    check_components(components)
    if metrics is not None and not isinstance(metrics, Mapping):
        raise ValueError(f"metrics must be numbers by name, got {metrics!r}")
    for name, value in (metrics or {}).items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"metrics must be numbers by name, got {value!r} for {name!r}")
    if metric is not None and metrics is not None and metric not in metrics:
        raise ValueError(f"metrics must have {metric!r}, the metric of this checkpointer, got {', '.join(metrics)}")


def check_components(components: Any) -> None:
    """Check that each component has a state that can be saved and loaded."""
    if not isinstance(components, Mapping) or not components:
        raise ValueError(f"components must be objects by name, at least one, got {components!r}")
    for name, item in components.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError(f"components must have names without a slash, got {name!r}")
        if not isinstance(item, Tensor) and not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise ValueError(f"components must have state_dict and load_state_dict, got {item!r} for {name!r}")


def check_metric(metric: str | None) -> str:
    """Return the metric that says which checkpoint is best."""
    if metric is None:
        raise ValueError("metric must be given to the checkpointer to load the best checkpoint, got None")
    return metric


def rank_and_size(group: ProcessGroup | None) -> tuple[int, int]:
    """Return this rank in the group, and its size."""
    return dist.get_rank(group), dist.get_world_size(group)
