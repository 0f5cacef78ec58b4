"""`init_process_group` on live ranks: a cell that begins with it can be run again, and keeps the present group."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from labkit.clusters.live.messages import Cell
from labkit.clusters.rank_lists import named_ranks
from labkit.torch_versions.groups import count_groups_from, replace_function


class DefaultGroup:
    """State of one rank's default process group."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._cell: Cell | None = None
        self._made_before = False
        """Whether it was created in an earlier cell."""

    def begin(self, cell: Cell) -> None:
        """Note the beginning of a cell on this rank."""
        self._cell = cell
        self._made_before = dist.is_initialized()
        count_groups_from(cell.group_count)

    def is_kept(self, backend: str | None) -> bool:
        """Called when a cell requests a default group. True if it keeps the present one; else one may be created."""
        assert self._cell is not None
        if self._made_before and dist.is_initialized():
            if self._cell.has_default_group and backend in (None, dist.get_backend()):
                return True
            dist.destroy_process_group()
            self._made_before = False
        self._require_all(self._cell)
        count_groups_from(self._cell.group_count)
        return False

    def _require_all(self, cell: Cell) -> None:
        if cell.dead:
            raise RuntimeError(
                f"a process group needs every rank, and {named_ranks(cell.dead)} "
                f"{'have' if len(cell.dead) > 1 else 'has'} died; %ranks restart starts all afresh"
            )
        if len(cell.ranks) < self._world_size:
            raise RuntimeError(
                f"a process group needs all {self._world_size} ranks, and this cell runs on "
                f"{named_ranks(cell.ranks)} alone: leave out --ranks for it"
            )


def keep_default_groups(of_this_rank: Callable[[], DefaultGroup]) -> None:
    """Make `init_process_group` ask the calling rank whether to create a group."""
    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **options: Any) -> None:
        if not of_this_rank().is_kept(backend):
            original(backend, *args, **options)

    replace_function("init_process_group", init_process_group)
