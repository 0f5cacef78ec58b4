"""Modules of torch that take more than a second to import, and that only some programs use.

Ranks are forked from a process that imports them beforehand: at once if the program looks as if it uses them, else when
that process is idle.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator

MODULES = (
    "torch._dynamo",  # by far the largest: the first optimizer, DistributedDataParallel or checkpoint imports it
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
)
_USERS = re.compile(
    rb"optim|DistributedDataParallel|fsdp|fully_shard|checkpoint|compile|DTensor|distribute_tensor|parallelize_module"
    rb"|pipelining"
)
"""Names in programs that use one of them."""


def load() -> Iterator[None]:
    """Import them, one per step."""
    for module in MODULES:
        importlib.import_module(module)
        yield


def load_all() -> None:
    """Import them all."""
    for _ in load():
        pass


def likely_used_by(programs: Iterable[bytes | str]) -> bool:
    """Whether one of these texts or pickles names something that imports them. A rank whose program was missed imports
    them itself: it only starts later."""
    return any(_USERS.search(program.encode() if isinstance(program, str) else program) for program in programs)
