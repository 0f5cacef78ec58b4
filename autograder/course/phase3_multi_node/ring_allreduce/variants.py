"""Variants of ring_allreduce: other right solutions. What they have in common is in variants/batch_isend_irecv.py."""

from autograder.mutants import Variant

VARIANTS = {
    "isend": Variant(base="batch_isend_irecv").edited("""
        Right: posts the send, receives with a blocking call, then waits for the send.

        A posted send blocks nobody, so each rank comes to its receive.

        - messages = [(dist.isend, outgoing, right), (dist.irecv, incoming, left)]
        - batch = [dist.P2POp(post, tensor, peer, group) for post, tensor, peer in messages if tensor.numel()]
        - for work in dist.batch_isend_irecv(batch) if batch else []:
        -     work.wait()
        + work = dist.isend(outgoing, right, group)
        + dist.recv(incoming, left, group)
        + work.wait()
    """),
    "alternating": Variant(base="batch_isend_irecv").edited("""
        Right: even ranks send first, odd ranks receive first, with blocking calls only.

        In a ring of odd size the last rank and the first one both send first; the first one's send is received, so it
        comes to its receive, too.

        - messages = [(dist.isend, outgoing, right), (dist.irecv, incoming, left)]
        - batch = [dist.P2POp(post, tensor, peer, group) for post, tensor, peer in messages if tensor.numel()]
        - for work in dist.batch_isend_irecv(batch) if batch else []:
        -     work.wait()
        + if dist.get_rank(group) % 2 == 0:
        +     dist.send(outgoing, right, group)
        +     dist.recv(incoming, left, group)
        + else:
        +     dist.recv(incoming, left, group)
        +     dist.send(outgoing, right, group)
    """),
    "leftward": Variant(base="batch_isend_irecv").edited("""
        Right: the same ring in the opposite direction.

        Each rank sends to its left neighbour only: as many bytes, messages and rounds.

        - mine = shards[(rank - step - 2) % size]
        - exchange(shards[(rank - step - 1) % size], buffer[: mine.numel()], left, right, group)
        + mine = shards[(rank + step + 2) % size]
        + exchange(shards[(rank + step + 1) % size], buffer[: mine.numel()], left, right, group)

        - exchange(shards[(rank - step) % size], shards[(rank - step - 1) % size], left, right, group)
        + exchange(shards[(rank + step) % size], shards[(rank + step + 1) % size], left, right, group)

        - messages = [(dist.isend, outgoing, right), (dist.irecv, incoming, left)]
        + messages = [(dist.isend, outgoing, left), (dist.irecv, incoming, right)]
    """),
}
