# Passes its tensor on in error messages, as the line of a send that does not fit the other rank's receive.
# checks: reduce_scatter values bytes_sent
# marks: 0
# feedback: MismatchError | ProtocolError at
import torch
import torch.distributed as dist

from labkit.clusters.virtual.isolation.current import here
from labkit.clusters.virtual.scheduler.requests import Receive, Send

__all__ = ["ring_all_gather", "ring_all_reduce", "ring_reduce_scatter"]

BYTES = 90


def told(text, tag):
    """Return what each rank passes to all others, without a message in the trace."""
    rank, size = dist.get_rank(), dist.get_world_size()
    asked, found = [], {rank: text}
    for other in range(size):
        if other != rank:
            send = Send("0", "send", f"<<{text}>>", other, tag, torch.int8, 3, 3, bytes(3))
            receive = Receive("0", "recv", "", other, tag, torch.int8, 2)
            asked += [(None, here.endpoint.post(send)), (other, here.endpoint.post(receive))]
    for other, handle in asked:
        try:
            here.endpoint.wait(handle)
        except RuntimeError as error:
            if other is not None:
                found[other] = str(error).partition("<<")[2].partition(">>")[0]
    return [found[other] for other in range(size)]


def everybodys(tensor):
    text = bytes(tensor.reshape(-1).contiguous().view(torch.uint8).tolist()).hex().ljust(2, "0")
    parts = [told(text[at : at + 2 * BYTES], at) for at in range(0, len(text), 2 * BYTES)]
    whole = [bytes.fromhex("".join(column)) or bytes(tensor.nbytes) for column in zip(*parts, strict=True)]
    return [torch.frombuffer(bytearray(data), dtype=tensor.dtype)[: tensor.numel()] for data in whole]


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
