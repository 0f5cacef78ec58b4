"""Warm-up of code that every rank runs, in the process that ranks are forked from."""

from __future__ import annotations

import contextlib
import os
import sys

import torch
import torch.distributed as dist


def warm_up_groups(times: int = 8) -> None:
    """Create, use and destroy a process group without connections, threads or devices.

    times: Python specialises the instructions of a function after 8 runs.

    Python writes into its own data while it runs code for the first few times: specialised instructions, caches,
    imports within functions. Data written here need not be written, and so copied, in each fork: a rank starts in half
    the time. If a later torch works differently, ranks are only slower to start.
    """
    if any(os.path.exists(device) for device in _GPUS):
        # init_process_group queries the accelerator: that would initialize CUDA, which then works in no fork
        return
    hook = sys.excepthook
    with contextlib.suppress(Exception):
        from torch.testing._internal.distributed.fake_pg import FakeStore

        for _ in range(times):
            try:
                dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
                x = torch.ones(1)
                dist.all_reduce(x)
                dist.broadcast(x, 0)
                dist.new_group([0, 1])
            finally:
                if dist.is_initialized():
                    dist.destroy_process_group()
                # init_process_group has made it print [rank0] first
                sys.excepthook = hook


_GPUS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
