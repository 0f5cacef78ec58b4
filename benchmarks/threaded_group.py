"""Peer of benchmarks/virtual.py: torch's own threaded process group, with which torch tests FSDP2 and DTensor.

It has collectives, but no clock, trace, memory accounting, send or recv. Prints the seconds from the first rank's
start, after `init_process_group`, to the last one's end.

    python benchmarks/threaded_group.py all_reduce|ddp RANKS
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import torch
import torch._dynamo  # DistributedDataParallel imports it on first use
import torch.distributed as dist
from torch.testing._internal.distributed import multi_threaded_pg


def all_reduce() -> None:
    x = torch.ones(1000)
    for _ in range(100):
        dist.all_reduce(x)


def ddp() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.randn(16, 64)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def seconds(program: Callable[[], None], ranks: int) -> float:
    multi_threaded_pg._install_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    store = dist.HashStore()
    spans: list[tuple[float, float]] = []

    def main(rank: int) -> None:
        try:
            dist.init_process_group("threaded", rank=rank, world_size=ranks, store=store)
            dist.barrier()
            with torch.autograd.set_multithreading_enabled(False):
                began = time.perf_counter()
                program()
                spans.append((began, time.perf_counter()))
        except BaseException as error:
            multi_threaded_pg.ProcessLocalGroup.exception_handle(error)
            raise

    threading.stack_size(2 << 20)
    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(spans) < ranks:
        raise SystemExit("not every rank came to its end")
    return max(end for _, end in spans) - min(began for began, _ in spans)


if __name__ == "__main__":
    print(seconds({"all_reduce": all_reduce, "ddp": ddp}[sys.argv[1]], int(sys.argv[2])))
