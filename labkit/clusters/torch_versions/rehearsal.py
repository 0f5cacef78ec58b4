"""Code that every rank runs, run once in the process that ranks are forked from."""

from __future__ import annotations

import contextlib
import os
import sys

import torch
import torch.distributed as dist


def rehearse_groups() -> None:
    """Make, use and destroy a process group that has no connections, threads or devices.

    Python writes into its own data while it runs code for the first times: specialised instructions, caches, imports
    within functions. What is written here need not be written, and so copied, in each fork: a rank starts in half the
    time. Where torch does it differently some day, nothing is gained and nothing lost.
    """
    if any(os.path.exists(device) for device in _GPUS):
        # init_process_group asks what accelerator there is: CUDA would begin here, and not work in any fork
        return
    hook = sys.excepthook
    with contextlib.suppress(Exception):
        from torch.testing._internal.distributed.fake_pg import FakeStore

        for _ in range(_TIMES):
            try:
                dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
                x = torch.ones(1)
                dist.all_reduce(x)
                dist.broadcast(x, 0)
                dist.new_group([0, 1])
            finally:
                if dist.is_initialized():
                    dist.destroy_process_group()
                # init_process_group has put [rank0] before what the last one prints
                sys.excepthook = hook


_GPUS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
_TIMES = 8
"""After so many runs of a function Python specialises its instructions."""
