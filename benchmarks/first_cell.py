"""The first cell of a notebook: a fresh kernel, from `%load_ext labkit` to the end of a `%%torchrun` cell."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from jupyter_client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel
from starts import PROGRAM


def seconds_to_first_output(ranks: int) -> float:
    """Time from sending `%load_ext labkit` to the reply of the first `%%torchrun` cell, in seconds."""
    with _fresh_kernel() as client:
        began = time.perf_counter()
        client.execute(f"%load_ext labkit\n%cluster local --nproc-per-node {ranks}")
        reply = client.execute_interactive(f"%%torchrun\n{PROGRAM}", output_hook=lambda message: None, timeout=300)
        seconds = time.perf_counter() - began
    if reply["content"]["status"] != "ok":
        raise SystemExit(f"the first cell failed: {reply['content']}")
    return seconds


@contextmanager
def _fresh_kernel() -> Iterator[BlockingKernelClient]:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "LABKIT_WORKSPACE": folder}
        manager, client = start_new_kernel(cwd=folder, env=environment, startup_timeout=300)
        try:
            yield client
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
