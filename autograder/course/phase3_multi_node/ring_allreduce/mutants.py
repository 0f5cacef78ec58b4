"""Mutants of ring_allreduce: what is wrong in each, what it earns, and the checks that it loses."""

from autograder.mutants import Mutant

VALUES = {
    "values", "reduce_scatter", "all_gather", "uneven", "tiny", "dtypes", "operations", "in_place", "large", "groups",
    "bad_arguments",
}  # fmt: skip
TRAFFIC = {"bytes_sent", "bytes_uneven", "neighbours", "messages"}
HOW = TRAFFIC | {"time", "real_processes"}
EVERYTHING = VALUES | HOW

MUTANTS = {
    "calls_all_reduce": Mutant(0, loses=EVERYTHING),
    # one element: the other shards are empty, so there is no cycle of senders
    "everybody_sends_first": Mutant(1, loses=EVERYTHING - {"tiny"}, base="alternating").edited("""
        Each rank sends before it receives, and send waits for its receive: a deadlock around the ring.

        - if dist.get_rank(group) % 2 == 0:
        + if outgoing.numel():
              dist.send(outgoing, right, group)
        + if incoming.numel():
              dist.recv(incoming, left, group)
        - else:
        -     dist.recv(incoming, left, group)
        -     dist.send(outgoing, right, group)
    """),
    "one_round_short": Mutant(0, loses=EVERYTHING, base="batch_isend_irecv").edited("""
        Both loops end one round too early.

          buffer = torch.empty_like(shards[0])
        - for step in range(size - 1):
        + for step in range(size - 2):

        - for step in range(size - 1):
        + for step in range(size - 2):
    """),
    # the same bytes in all, so the kernel sees no difference
    "gathers_to_rank_0": Mutant(14, loses=TRAFFIC | {"time"}),
    "sends_whole_tensor": Mutant(
        16, loses={"bytes_sent", "bytes_uneven", "time", "real_processes"}, base="batch_isend_irecv"
    ).edited("""
        The right rounds and neighbours, but the whole tensor travels in each of them.

        - buffer = torch.empty_like(shards[0])
        + buffer = torch.empty_like(tensor)
        + arrived = split("buffer", buffer, size)
          for step in range(size - 1):
        -     mine = shards[(rank - step - 2) % size]
        -     exchange(shards[(rank - step - 1) % size], buffer[: mine.numel()], left, right, group)
        -     combine(mine, buffer[: mine.numel()], out=mine)
        +     index = (rank - step - 2) % size
        +     exchange(tensor, buffer, left, right, group)
        +     combine(shards[index], arrived[index], out=shards[index])

        + buffer = torch.empty_like(out)
        + arrived = split("buffer", buffer, size)
          for step in range(size - 1):
        -     exchange(shards[(rank - step) % size], shards[(rank - step - 1) % size], left, right, group)
        +     index = (rank - step - 1) % size
        +     exchange(out, buffer, left, right, group)
        +     shards[index].copy_(arrived[index])
    """),
    "wrong_when_uneven": Mutant(22, loses={"uneven", "tiny", "bytes_uneven"}, base="batch_isend_irecv").edited("""
        Shards are floor(numel / N) long: what is left over is never reduced.

        - length = -(-tensor.numel() // count)
        + length = tensor.numel() // count
    """),
    "wrong_for_one_element": Mutant(24, loses={"tiny"}, base="batch_isend_irecv").edited("""
        A single element is taken as nothing to do.

          def ring_all_reduce(tensor, op=SUM, group=None):
        +     if isinstance(tensor, torch.Tensor) and tensor.numel() <= 1:
        +         return tensor
    """),
    "returns_a_copy": Mutant(23, loses={"in_place"}, base="batch_isend_irecv").edited("""
        The result is right, in another tensor; the one that was given stays as it was.

        - shard = ring_reduce_scatter(tensor, group, op=op)
        - ring_all_gather(shard, group, out=tensor)
        - return tensor
        + split("tensor", tensor, 1)
        + result = tensor.clone()
        + shard = ring_reduce_scatter(result, group, op=op)
        + return ring_all_gather(shard, group, out=result)
    """),
    "crosses_the_ring": Mutant(23, loses={"neighbours"}, base="batch_isend_irecv").edited('''
        A right ring in another order: 0, 2, 4, ..., then 1, 3, 5, ...

        - buffer = torch.empty_like(shards[0])
        + buffer = torch.empty_like(max(shards, key=len))

        + def order(size):
        +     return [*range(0, size, 2), *range(1, size, 2)]
        +
        +
          def place(group):
        +     """This rank's seat in the crossed ring, and its neighbours there."""
              ranks = dist.get_process_group_ranks(group)
        -     rank, size = dist.get_rank(group), len(ranks)
        -     return rank, size, ranks[(rank - 1) % size], ranks[(rank + 1) % size]
        +     size = len(ranks)
        +     seats = order(size)
        +     seat = seats.index(dist.get_rank(group))
        +     return seat, size, ranks[seats[(seat - 1) % size]], ranks[seats[(seat + 1) % size]]

        - return [tensor.view(-1)[i * length : (i + 1) * length] for i in range(count)]
        + return [tensor.view(-1)[i * length : (i + 1) * length] for i in order(count)]
    '''),
    "right_on_virtual_ranks": Mutant(23, loses={"real_processes"}, base="batch_isend_irecv").edited("""
        A ring where the judge routes the messages; anywhere else the library does it.

          def ring_all_reduce(tensor, op=SUM, group=None):
        +     if "Virtual" not in type(dist.group.WORLD).__name__:
        +         everybodys = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        +         dist.all_gather(everybodys, tensor, group=group)
        +         return tensor.copy_(sum(everybodys))
    """),
    # ranks have no files in common
    "meets_in_files": Mutant(0, loses=EVERYTHING, base="batch_isend_irecv").edited("""
        The messages of a ring, with nothing in them: what counts goes through files, which ranks have not in common.

        + import itertools
        +
          import torch

        + COUNT = itertools.count()
        +
        +
          def exchange(outgoing, incoming, left, right, group):
        -     messages = [(dist.isend, outgoing, right), (dist.irecv, incoming, left)]
        +     number = next(COUNT)
        +     torch.save(outgoing.clone(), f"/tmp/{dist.get_rank()}-{number}")
        +     messages = [(dist.isend, torch.zeros_like(outgoing), right), (dist.irecv, incoming, left)]

              work.wait()
        + if incoming.numel():
        +     incoming.copy_(torch.load(f"/tmp/{left}-{number}"))
    """),
    "one_rank_at_a_time": Mutant(22, loses={"time"}, base="isend").edited("""
        Rank 0 sends first and all others receive first: no deadlock, but each message waits for the one before it.

        - work = dist.isend(outgoing, right, group)
        - dist.recv(incoming, left, group)
        - work.wait()
        + def send():
        +     if outgoing.numel():
        +         dist.send(outgoing, right, group)
        +
        + def receive():
        +     if incoming.numel():
        +         dist.recv(incoming, left, group)
        +
        + first, second = (send, receive) if dist.get_rank(group) == 0 else (receive, send)
        + first()
        + second()
    """),
    "sends_padding": Mutant(24, loses={"bytes_uneven"}, base="batch_isend_irecv").edited("""
        Every shard is padded to the full length, and the padding is sent as well.

        - exchange(shards[(rank - step - 1) % size], buffer[: mine.numel()], left, right, group)
        + exchange(padded(shards[(rank - step - 1) % size], shards[0]), buffer, left, right, group)

        - exchange(shards[(rank - step) % size], shards[(rank - step - 1) % size], left, right, group)
        + arrived = torch.empty_like(shards[0])
        + exchange(padded(shards[(rank - step) % size], shards[0]), arrived, left, right, group)
        + mine = shards[(rank - step - 1) % size]
        + mine.copy_(arrived[: mine.numel()])

        + def padded(shard, full):
        +     result = torch.zeros_like(full)
        +     result[: shard.numel()] = shard
        +     return result
        +
        +
          def place(group):
    """),
    "splits_messages": Mutant(23, loses={"messages"}, base="isend").edited("""
        Each shard travels as two messages.

        - work = dist.isend(outgoing, right, group)
        - dist.recv(incoming, left, group)
        - work.wait()
        + for sent, received in zip(outgoing.tensor_split(2), incoming.tensor_split(2), strict=True):
        +     messages = [(dist.isend, sent, right), (dist.irecv, received, left)]
        +     batch = [dist.P2POp(post, tensor, peer, group) for post, tensor, peer in messages if tensor.numel()]
        +     for work in dist.batch_isend_irecv(batch) if batch else []:
        +         work.wait()
    """),
    "shards_shifted": Mutant(23, loses={"reduce_scatter", "uneven"}, base="batch_isend_irecv").edited("""
        Reduce-scatter leaves shard r + 1 on rank r; the all-reduce knows about it and is right.

        -     mine = shards[(rank - step - 2) % size]
        -     exchange(shards[(rank - step - 1) % size], buffer[: mine.numel()], left, right, group)
        +     mine = shards[(rank - step - 1) % size]
        +     exchange(shards[(rank - step) % size], buffer[: mine.numel()], left, right, group)
              combine(mine, buffer[: mine.numel()], out=mine)
        - return shards[rank].div_(size) if op == AVG else shards[rank]
        + mine = shards[(rank + 1) % size]
        + return mine.div_(size) if op == AVG else mine

          def ring_all_gather(shard, group=None, *, out=None):
        -     rank, size, left, right = place(group)
        +     rank, size, *_ = place(group)

        - for step in range(size - 1):
        -     exchange(shards[(rank - step) % size], shards[(rank - step - 1) % size], left, right, group)
        + pass_on(shards, rank, group)

        + def pass_on(shards, first, group):
        +     _, size, left, right = place(group)
        +     for step in range(size - 1):
        +         exchange(shards[(first - step) % size], shards[(first - step - 1) % size], left, right, group)
        +
        +
          def ring_all_reduce(tensor, op=SUM, group=None):
        -     shard = ring_reduce_scatter(tensor, group, op=op)
        -     ring_all_gather(shard, group, out=tensor)
        +     ring_reduce_scatter(tensor, group, op=op)
        +     rank, size, *_ = place(group)
        +     pass_on(split("tensor", tensor, size), rank + 1, group)
    """),
    "ignores_group": Mutant(24, loses={"groups"}, base="batch_isend_irecv").edited("""
        Runs around the whole world whatever group it is given.

          def ring_reduce_scatter(tensor, group=None, *, op=SUM):
        +     group = None

          def ring_all_gather(shard, group=None, *, out=None):
        +     group = None
    """),
    "always_sums": Mutant(24, loses={"operations"}, base="batch_isend_irecv").edited("""
        Takes op and adds.

        - return shards[rank].div_(size) if op == AVG else shards[rank]
        + return shards[rank]

        - return known[op]
        + return torch.add
    """),
    "casts_to_float32": Mutant(24, loses={"dtypes"}, base="batch_isend_irecv").edited("""
        What arrives goes through a float32 buffer.

        - combine(mine, buffer[: mine.numel()], out=mine)
        + mine.copy_(combine(mine.float(), buffer[: mine.numel()].float()))
    """),
    "checks_nothing": Mutant(24, loses={"bad_arguments"}, base="batch_isend_irecv").edited("""
        Bad arguments fail somewhere on the way, or not at all.

        - if shards[rank].numel() != shard.numel():
        -     raise ValueError(f"out must have room for {shard.numel()} elements, got {shards[rank].numel()}")

        - if not isinstance(tensor, torch.Tensor) or not tensor.is_contiguous():
        -     raise ValueError(f"{name} must be a contiguous tensor, got {tensor!r}"[:200])

        - if op not in known:
        -     raise ValueError(f"op must be SUM, AVG, MAX, MIN or PRODUCT, got {op}")
        - return known[op]
        + return known.get(op, torch.add)
    """),
    "four_ranks_only": Mutant(0, loses=EVERYTHING, base="batch_isend_irecv").edited("""
        Written for the four ranks of the notebook.

        - ranks = dist.get_process_group_ranks(group)
        - rank, size = dist.get_rank(group), len(ranks)
        - return rank, size, ranks[(rank - 1) % size], ranks[(rank + 1) % size]
        + rank, size = dist.get_rank(group), 4
        + return rank, size, (rank - 1) % size, (rank + 1) % size
    """),
    "prints_the_answer": Mutant(0, loses=EVERYTHING),
    "does_nothing": Mutant(0, loses=EVERYTHING),
}
