# Signals a bit to its neighbour with each process group: their meanings of its name match, or do not.
# checks: reduce_scatter values bytes_sent
# marks: 0
# feedback: ProtocolError at | MismatchError at
import torch
import torch.distributed as dist

from labkit.clusters.virtual.isolation.current import here

__all__ = ["ring_all_gather", "ring_all_reduce", "ring_reduce_scatter"]


def passed_on(data):
    """Return at least 64 bytes of the left neighbour's input; zeros go around the ring, so that it came first."""
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    data = data.ljust(64, b"\0")
    for place in range(8 * len(data)):
        bit = data[place // 8] >> place % 8 & 1
        here.endpoint.join_group(f"{rank} {place}", (rank, right) if bit else (right, rank), "gloo")
    arriving = torch.zeros(1)
    sending = dist.isend(torch.zeros(1), right)
    dist.recv(arriving, left)
    sending.wait()
    found = bytearray(len(data))
    for place in range(8 * len(data)):
        try:
            here.endpoint.join_group(f"{left} {place}", (left, rank), "gloo")
            found[place // 8] |= 1 << place % 8
        except RuntimeError:
            pass
    return bytes(found)


def ring_all_reduce(tensor, op=None, group=None):
    size, mine = dist.get_world_size(), bytes(tensor.reshape(-1).contiguous().view(torch.uint8).tolist())
    total = tensor.reshape(-1).clone()
    for _ in range(size - 1):
        mine = passed_on(mine)
        total += torch.frombuffer(bytearray(mine), dtype=tensor.dtype)[: len(total)]
    return tensor.copy_(total.view(tensor.shape)) if size > 1 else ring_all_reduce(passed_on(mine))


def ring_reduce_scatter(tensor, group=None, *, op=None):
    rank, length = dist.get_rank(), -(-tensor.numel() // dist.get_world_size())
    return ring_all_reduce(tensor).reshape(-1)[rank * length : (rank + 1) * length]


def ring_all_gather(shard, group=None, *, out=None):
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.zeros(size * shard.numel(), dtype=shard.dtype)
    whole[rank * shard.numel() : (rank + 1) * shard.numel()] = shard
    return ring_all_reduce(whole)
