"""Process groups of some ranks, made by these alone, whatever other groups each of them has made before."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

_made: WeakKeyDictionary[dist.ProcessGroup, Counter[tuple[int, ...]]] = WeakKeyDictionary()
"""For each group the ranks of the groups that were made within it, and how often."""


def group_within(
    parent: dist.ProcessGroup | None,
    ranks: Iterable[int],
    backend: str | None = None,
    timeout: timedelta | None = None,
    description: str | None = None,
) -> dist.ProcessGroup:
    """Return a new group of these ranks of `parent`, in their order as numbers; they alone call this.

    ranks: global ranks, of which this one must be one. backend: that of the default group by default. The ranks must
    make their groups within one parent in the same order, as they call its collectives.

    `dist.new_group(ranks, use_local_synchronization=True)` makes the name, under which the ranks meet, from the number
    of all groups that a rank is in. Ranks that are in different numbers of groups wait under different names, for ever.
    Here the name says which of the parent's groups of these ranks it is.
    """
    members = sorted(ranks)
    within = dist.group.WORLD if parent is None else parent
    assert within is not None
    counts = _made.setdefault(within, Counter())
    counts[tuple(members)] += 1
    # not the ranks themselves: a key of the store must not grow with their number
    of_ranks = hashlib.sha1(repr(members).encode(), usedforsecurity=False).hexdigest()
    name = c10d.GroupName(f"{within.group_name}/{of_ranks}/{counts[tuple(members)]}")
    default = c10d._get_default_group()
    default_backend, store = c10d._world.pg_map[default]
    chosen = dist.Backend(backend or default_backend)
    group, _ = c10d._new_process_group_helper(
        len(members),
        members.index(dist.get_rank()),
        members,
        chosen,
        store,
        name,
        timeout=timeout or c10d._get_default_timeout(chosen),
        device_id=default.bound_device_id,
        group_desc=description,
    )
    c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(members)}
    made: dist.ProcessGroup = group
    return made
