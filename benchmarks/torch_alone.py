"""The time that torch's own Python and C++ code takes for one rank of a program, without any ranks beside it.

The program, read from stdin, runs in a group of torch's `fake` backend: each call returns at once, and nothing is sent.
Its tensors are real, so give it small ones. Prints the median CPU seconds of three runs, after one that warms up.

    python benchmarks/torch_alone.py RANK WORLD_SIZE < PROGRAM
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # registers the backend

REPETITIONS = 3


def main() -> None:
    rank, world_size = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=fake_pg.FakeStore())
    program = compile(sys.stdin.read(), "program", "exec")
    seconds = []
    for _ in range(1 + REPETITIONS):
        names = {"torch": torch, "dist": dist, "rank": rank, "n": world_size}
        began = time.process_time()
        exec(program, names)
        seconds.append(time.process_time() - began)
    print(statistics.median(seconds[1:]))


if __name__ == "__main__":
    main()
