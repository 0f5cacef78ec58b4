"""`init_process_group` on ranks that stay: a cell that begins with it can be run again, and keeps what stands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from labkit.clusters import torch_versions
from labkit.clusters.live.messages import Cell
from labkit.clusters.run import ranges


class DefaultGroup:
    """What one rank knows of its default process group."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._cell: Cell | None = None
        self._made_before = False
        """In a cell before this one."""

    def begin(self, cell: Cell) -> None:
        """A cell begins on this rank."""
        self._cell = cell
        self._made_before = dist.is_initialized()
        torch_versions.count_groups_from(cell.group_count)

    def is_kept(self, backend: str | None) -> bool:
        """A cell asks for a default group. True when it has one; else one must be made, and can be."""
        assert self._cell is not None
        if self._made_before and dist.is_initialized():
            if self._cell.standing and backend in (None, dist.get_backend()):
                return True
            dist.destroy_process_group()
            self._made_before = False
        self._require_all(self._cell)
        torch_versions.count_groups_from(self._cell.group_count)
        return False

    def _require_all(self, cell: Cell) -> None:
        if cell.dead:
            raise RuntimeError(
                f"a process group needs every rank, and rank{'s' * (len(cell.dead) > 1)} {ranges(cell.dead)} "
                f"{'have' if len(cell.dead) > 1 else 'has'} died; %ranks restart starts all afresh"
            )
        if len(cell.ranks) < self._world_size:
            raise RuntimeError(
                f"a process group needs all {self._world_size} ranks, and this cell runs on "
                f"rank{'s' * (len(cell.ranks) > 1)} {ranges(cell.ranks)} alone: leave out --ranks for it"
            )


def keep_default_groups(of_this_rank: Callable[[], DefaultGroup]) -> None:
    """From now on `init_process_group` asks the rank that calls it whether it has to make one."""
    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **options: Any) -> None:
        if not of_this_rank().is_kept(backend):
            original(backend, *args, **options)

    torch_versions.replace_function("init_process_group", init_process_group)
