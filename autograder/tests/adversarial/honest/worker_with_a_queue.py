# A worker of a pool communicates; the main thread waits for a queue and sums.
# marks: 6
# feedback: 6 of 6 points
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import torch
import torch.distributed as dist

__all__ = ["pass_around"]


def exchange(outgoing, arrived):
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(size - 1):
        incoming = torch.empty_like(outgoing)
        sending = dist.isend(outgoing, (rank + 1) % size)
        dist.recv(incoming, (rank - 1) % size)
        sending.wait()
        arrived.put(incoming)
        outgoing = incoming


def pass_around(tensor):
    arrived = Queue()
    with ThreadPoolExecutor(1) as pool:
        exchanging = pool.submit(exchange, tensor.clone(), arrived)
        for _ in range(dist.get_world_size() - 1):
            tensor += arrived.get()
        exchanging.result()
    return tensor
