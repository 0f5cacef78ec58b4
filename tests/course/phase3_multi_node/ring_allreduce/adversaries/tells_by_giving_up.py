# Passes its tensor on by the time at which it gives up a barrier that one rank skips: the trace shows nothing.
# checks: reduce_scatter values bytes_sent
# marks: 0
# feedback: ProtocolError at
import time

import torch
import torch.distributed as dist

from labkit.clusters.virtual.isolation.current import here
from labkit.clusters.virtual.scheduler.requests import Collective

__all__ = ["ring_all_gather", "ring_all_reduce", "ring_reduce_scatter"]

SLOT, TICK, MOST = 1000.0, 1e-7, 8
"""Seconds per number, per value of it; elements of -8 to 8 in one number."""
begun = 0


def sleep_until(moment):
    time.sleep(max(0.0, moment - here.endpoint.now))


def told(number):
    """Return what each rank passes to all others, by the clock: two slots each, with one rank absent or another."""
    global begun
    rank, size = dist.get_rank(), dist.get_world_size()
    found = {rank: number}
    for teller in range(size):
        for absent in ((teller + 1) % size, (teller + 2) % size):
            begun += 1
            sleep_until(begun * SLOT + (SLOT - 1 if rank == absent else 0))
            timeout = 1 + number * TICK if rank == teller else 2 * SLOT
            barrier = Collective("0", "monitored_barrier", "", [], "", -1, timeout=timeout)
            try:
                here.endpoint.wait(here.endpoint.post(barrier))
            except RuntimeError:
                if rank != absent:
                    found[teller] = round((here.endpoint.now - begun * SLOT - 1) / TICK)
    found[rank] = number
    return [found[other] for other in range(size)]


def everybodys(tensor):
    mine = [int(element) + 8 for element in tensor.reshape(-1).tolist()]
    columns = []
    for place in range(0, len(mine), MOST):
        number = 0
        for element in mine[place : place + MOST]:
            number = number * 17 + element
        columns.append(told(number))
    found = []
    for row in zip(*columns, strict=True):
        values = []
        for place, number in zip(range(0, len(mine), MOST), row, strict=True):
            digits = []
            for _ in mine[place : place + MOST]:
                number, digit = divmod(number, 17)
                digits.append(digit - 8)
            values += digits[::-1]
        found.append(torch.tensor(values).to(tensor.dtype))
    return found


def exchanged(tensor, rounds):
    """Send zeros around the ring; alterations on the way must show in the answer."""
    rank, size = dist.get_rank(), dist.get_world_size()
    length, found = -(-tensor.numel() // size), 0
    for _ in range(rounds):
        arriving = torch.zeros(length, dtype=tensor.dtype)
        sending = dist.isend(torch.zeros_like(arriving), (rank + 1) % size)
        dist.recv(arriving, (rank - 1) % size)
        sending.wait()
        found = found + arriving
    return found


def ring_reduce_scatter(tensor, group=None, *, op=None):
    rank, size = dist.get_rank(), dist.get_world_size()
    length = -(-tensor.numel() // size)
    shard = sum(everybodys(tensor))[rank * length : (rank + 1) * length]
    return shard + exchanged(tensor, size - 1)[: len(shard)]


def ring_all_gather(shard, group=None, *, out=None):
    whole = torch.cat(everybodys(shard))
    whole[: shard.numel()] += exchanged(whole, dist.get_world_size() - 1)
    return whole


def ring_all_reduce(tensor, op=None, group=None):
    total, size = sum(everybodys(tensor)), dist.get_world_size()
    if size > 1:
        met = exchanged(tensor, 2 * (size - 1))
        total[: len(met)] += met[: len(total)]
    return tensor.copy_(total.view(tensor.shape))
