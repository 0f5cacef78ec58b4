"""One cell on existing ranks: `%%ranks` and ipyparallel's `%%px`, in one notebook shell."""

from __future__ import annotations

import contextlib
import io
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from IPython.core.interactiveshell import InteractiveShell

from labkit.linux.free_port import free_port

JOIN = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
"""
CELL = "dist.all_reduce(x)\ndist.get_rank()"


@contextmanager
def cells(ranks: int) -> Iterator[dict[str, Callable[[], float]]]:
    """`%%ranks` and `%%px`: each call runs one cell on all ranks and returns its seconds, including display."""
    import ipyparallel

    shell = InteractiveShell.instance()

    def run(magic: str, cell: str) -> float:
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            shell.run_cell_magic(magic, "", cell)
        return time.perf_counter() - began

    with contextlib.redirect_stdout(io.StringIO()):
        shell.run_line_magic("load_ext", "labkit")
        shell.run_line_magic("cluster", f"local --nproc-per-node {ranks}")
    with contextlib.ExitStack() as stack:
        with contextlib.redirect_stdout(io.StringIO()):  # ipyparallel prints its own progress bar
            engines = stack.enter_context(ipyparallel.Cluster(n=ranks, log_level=logging.ERROR))
        engines.wait_for_engines(ranks, interactive=False)
        port = free_port()
        for rank, engine in enumerate(engines):
            engine.execute(f"import os; os.environ.update({_environment(rank, ranks, port)})", block=True)
        everybody = engines[:]
        everybody.block = True
        everybody.activate()
        run("ranks", JOIN)
        run("px", JOIN)
        yield {"%%ranks": lambda: run("ranks", CELL), "%%px": lambda: run("px", CELL)}
        with contextlib.redirect_stdout(io.StringIO()):
            shell.run_line_magic("ranks", "stop")


def _environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    settings = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": 1,
    }
    return {name: str(value) for name, value in settings.items()}
