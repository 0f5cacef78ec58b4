"""Exercise 01 on a rank, for its checks: each program uses the module as a training script would.

reads(cases)                    configs from environments
comes_and_goes(...)             two groups, one after the other
takes_turns(turn, error, ...)   a block under rank_zero_first
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Environment = dict[str, str | None]
"""Environment variables; None removes one."""


def reads(cases: list[tuple[Environment, dict[str, Any]]]) -> list[list[Any]]:
    """On a rank: return from_env's result for each environment and these options: the fields of the config, rank, world
    size and local rank first, or the error's type and message."""
    from labkit.exercises import process_group

    found: list[Any] = []
    for name in [name for name in os.environ if name.startswith("SLURM_")]:  # the check may run in a job of Slurm
        del os.environ[name]
    for variables, options in cases:
        for name, value in variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        try:
            c = process_group.DDPConfig.from_env(**options)
            found.append([c.rank, c.world_size, c.local_rank, c.backend, c.init_method, c.gradient_as_bucket_view])
        except (ValueError, LookupError, TypeError) as error:
            found.append([type(error).__name__, str(error)])
    return found


def comes_and_goes(cleanups_before: int) -> list[list[Any]]:
    """On a rank: call cleanup so often; then twice join a group, and leave it by two calls of cleanup. Return for each
    group whether it exists, the sum of a one from each rank, and whether it exists after cleanup."""
    from labkit.exercises import process_group

    found: list[list[Any]] = []
    for _ in range(cleanups_before):
        process_group.cleanup()
    for _ in range(2):
        process_group.setup_distributed(process_group.DDPConfig.from_env(backend="gloo"))
        exists, total = dist.is_initialized(), torch.ones(1)
        dist.all_reduce(total)
        process_group.cleanup()
        process_group.cleanup()
        found.append([exists, total.item(), dist.is_initialized()])
    return found


def takes_turns(turn: Callable[[], None], error: str = "", group: Any = None, takes_part: bool = True) -> list[Any]:
    """On a rank: call `turn` in a block under rank_zero_first. Return its start and end in seconds, by this rank's
    clock, and the result of the block: "fine", or the text of the error with which it fails after its turn."""
    from labkit.exercises import process_group

    if not takes_part:
        return []
    moments = []
    try:
        with process_group.rank_zero_first(group):
            moments.append(time.monotonic())
            turn()
            moments.append(time.monotonic())
            if error:
                raise OSError(error)
    except OSError as failure:
        return [*moments, str(failure)]
    return [*moments, "fine"]
