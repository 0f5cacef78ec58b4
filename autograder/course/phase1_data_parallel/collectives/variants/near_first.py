"""Right: the broadcast starts between neighbouring ranks, and the reduce ends between them."""

import torch
import torch.distributed as dist

__all__ = ["all_gather", "all_reduce_naive", "all_reduce_recursive_doubling", "all_reduce_tree", "broadcast", "reduce"]
SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG


def broadcast(tensor, src, group=None):
    data = checked(tensor)
    place, ranks = row(group, "src", src)
    for distance in distances(len(ranks)):
        if distance <= place < 2 * distance:
            receive(data, ranks[place - distance], group)
        elif place < distance and place + distance < len(ranks):
            send(data, ranks[place + distance], group)
    return tensor


def reduce(tensor, dst, op=SUM, group=None):
    data, combine = checked(tensor), combining(op)
    place, ranks = row(group, "dst", dst)
    part = torch.empty_like(data)
    for distance in reversed(distances(len(ranks))):
        if distance <= place < 2 * distance:
            send(data, ranks[place - distance], group)
        elif place < distance and place + distance < len(ranks):
            receive(part, ranks[place + distance], group)
            combine(data, part, out=data)
    if place == 0:
        averaged(data, op, len(ranks))
    return tensor


def all_gather(tensor, group=None):
    data = checked(tensor)
    place, ranks = row(group)
    size = len(ranks)
    rows = data.new_empty((size, *data.shape))
    rows[0] = data
    for held in distances(size):
        more = min(held, size - held)
        exchange(
            rows[:more], ranks[(place - held) % size], rows[held : held + more], ranks[(place + held) % size], group
        )
    return rows.roll(place, dims=0)


def all_reduce_naive(tensor, op=SUM, group=None):
    data, combine = checked(tensor), combining(op)
    place, ranks = row(group)
    part = torch.empty_like(data)
    if place:
        send(data, ranks[0], group)
        receive(data, ranks[0], group)
    else:
        for peer in ranks[1:]:
            receive(part, peer, group)
            combine(data, part, out=data)
        averaged(data, op, len(ranks))
        for peer in ranks[1:]:
            send(data, peer, group)
    return tensor


def all_reduce_tree(tensor, op=SUM, group=None):
    first = row(group)[1][0]
    reduce(tensor, first, op, group)
    return broadcast(tensor, first, group)


def all_reduce_recursive_doubling(tensor, op=SUM, group=None):
    data, combine = checked(tensor), combining(op)
    place, ranks = row(group)
    part, core = torch.empty_like(data), 1 << (len(ranks).bit_length() - 1)
    if place >= core:
        send(data, ranks[place - core], group)
        receive(data, ranks[place - core], group)
    else:
        if place + core < len(ranks):
            receive(part, ranks[place + core], group)
            combine(data, part, out=data)
        for distance in distances(core):
            exchange(data, ranks[place ^ distance], part, ranks[place ^ distance], group)
            combine(data, part, out=data)
        if place + core < len(ranks):
            send(data, ranks[place + core], group)
    averaged(data, op, len(ranks))
    return tensor


def row(group, name="", first=None):
    ranks, rank = dist.get_process_group_ranks(group), dist.get_rank()
    if first is not None:
        if first not in ranks:
            raise ValueError(f"{name} must be one of {ranks}, got {first!r}")
        ranks = ranks[ranks.index(first) :] + ranks[: ranks.index(first)]
    return ranks.index(rank), ranks


def distances(size):
    return [1 << k for k in range((size - 1).bit_length())]


def checked(tensor):
    if not isinstance(tensor, torch.Tensor) or not tensor.is_contiguous():
        raise ValueError(f"tensor must be a contiguous tensor, got {tensor!r}"[:200])
    return tensor.detach()


def combining(op):
    ops = dist.ReduceOp
    known = {SUM: torch.add, AVG: torch.add, ops.MAX: torch.maximum, ops.MIN: torch.minimum, ops.PRODUCT: torch.mul}
    if op not in known:
        raise ValueError(f"op must be SUM, AVG, MAX, MIN or PRODUCT, got {op}")
    return known[op]


def averaged(data, op, size):
    if op == AVG:
        data.div_(size)


def send(data, peer, group):
    if data.numel():
        dist.send(data, peer, group)


def receive(data, peer, group):
    if data.numel():
        dist.recv(data, peer, group)


def exchange(outgoing, to, incoming, source, group):
    messages = [(dist.isend, outgoing, to), (dist.irecv, incoming, source)]
    batch = [dist.P2POp(post, data, peer, group) for post, data, peer in messages if data.numel()]
    for work in dist.batch_isend_irecv(batch) if batch else []:
        work.wait()
