"""Arguments of checkpointing, checked before any message is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.course.arguments import Rule, instance_of, integer, one_of, optional, positive, require
from labkit.course.collective_arguments import group_ranks
from labkit.course.phase4_production.checkpointing.given.object_storage import FsspecStorage
from labkit.course.phase4_production.checkpointing.given.storage import LocalStorage, Storage

FORMATS, MODES = ("sharded", "full"), ("min", "max")
_DIRECTORY = Rule(
    "be a path or an address of fsspec", lambda value: isinstance(value, (str, Path)) and len(str(value)) > 0
)
_COMPONENTS = Rule("be objects by name, at least one", lambda value: isinstance(value, Mapping) and len(value) > 0)
_NAME = Rule("have names without a slash", lambda value: isinstance(value, str) and len(value) > 0 and "/" not in value)


def require_options(
    keep_last_n: Any, checkpoint_interval_minutes: Any, format: Any, metric: Any, mode: Any, storage: Any
) -> None:
    """Check the arguments of a `DistributedCheckpointer`."""
    require("keep_last_n", keep_last_n, integer(at_least=1))
    require("checkpoint_interval_minutes", checkpoint_interval_minutes, positive)
    require("format", format, one_of(*FORMATS))
    require("mode", mode, one_of(*MODES))
    require("metric", metric, optional(instance_of(str, "a name in metrics")))
    require("storage", storage, optional(instance_of(Storage, "a Storage")))


def storage_at(checkpoint_dir: Any, format: str, group: ProcessGroup | None) -> Storage:
    """Return the storage at a path or at an address of fsspec."""
    ranks = len(group_ranks(group))
    require("checkpoint_dir", checkpoint_dir, _DIRECTORY)
    return storage_in(checkpoint_dir, ranks if format == "sharded" else 1)


def storage_in(folder: str | Path, writers: int = 1) -> Storage:
    """Return the storage of a folder or an address of fsspec. writers: ranks of a node that write at the same time."""
    if re.match(r"[a-z][a-z0-9+]*://", str(folder)):
        return FsspecStorage(str(folder))
    return LocalStorage(folder, writers)


def check_save(step: Any, components: Any, metrics: Any, metric: str | None) -> None:
    """Check the arguments of a save."""
    require("step", step, integer(at_least=0))
    require_components(components)
    require("metrics", metrics, optional(instance_of(Mapping, "numbers by name")))
    for name, value in (metrics or {}).items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"metrics must be numbers by name, got {value!r} for {name!r}")
    if metric is not None and metrics is not None and metric not in metrics:
        raise ValueError(f"metrics must have {metric!r}, the metric of this checkpointer, got {', '.join(metrics)}")


def require_components(components: Any) -> None:
    """Check that each component has a state that can be saved and loaded."""
    require("components", components, _COMPONENTS)
    for name, item in components.items():
        require("components", name, _NAME)
        if not isinstance(item, Tensor) and not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise ValueError(f"components must have state_dict and load_state_dict, got {item!r} for {name!r}")


def require_metric(metric: str | None) -> str:
    """Return the metric that says which checkpoint is best."""
    if metric is None:
        raise ValueError("metric must be given to the checkpointer to load the best checkpoint, got None")
    return metric


def rank_and_size(group: ProcessGroup | None) -> tuple[int, int]:
    """Return this rank in the group, and its size."""
    return dist.get_rank(group), dist.get_world_size(group)
