"""Variants of collectives: other right solutions."""

from autograder.mutants import Variant

VARIANTS = {
    "isend": Variant(base="near_first").edited("""
        Right: waits for its sends at the end, gathers in the other direction, and broadcasts to the farthest rank first.

        A binomial tree has as many rounds in either order of distances, and recursive doubling, too. In the all-gather a
        rank collects the rows of the ranks before it, with its own as the last one.

        - for distance in distances(len(ranks)):
        -     if distance <= place < 2 * distance:
        + for distance in reversed(distances(len(ranks))):
        +     if place % (2 * distance) == distance:
                  receive(data, ranks[place - distance], group)
        -     elif place < distance and place + distance < len(ranks):
        +     elif place % (2 * distance) == 0 and place + distance < len(ranks):

        - for distance in reversed(distances(len(ranks))):
        -     if distance <= place < 2 * distance:
        + for distance in distances(len(ranks)):
        +     if place % (2 * distance) == distance:
                  send(data, ranks[place - distance], group)
        -     elif place < distance and place + distance < len(ranks):
        +     elif place % (2 * distance) == 0 and place + distance < len(ranks):

        - rows[0] = data
        + rows[-1] = data

        -     exchange(
        -         rows[:more], ranks[(place - held) % size], rows[held : held + more], ranks[(place + held) % size], group
        -     )
        - return rows.roll(place, dims=0)
        +     left, right = ranks[(place - held) % size], ranks[(place + held) % size]
        +     exchange(rows[size - more :], right, rows[size - held - more : size - held], left, group)
        + return rows.roll(place + 1, dims=0)

        - for distance in distances(core):
        + for distance in reversed(distances(core)):

        - messages = [(dist.isend, outgoing, to), (dist.irecv, incoming, source)]
        - batch = [dist.P2POp(post, data, peer, group) for post, data, peer in messages if data.numel()]
        - for work in dist.batch_isend_irecv(batch) if batch else []:
        + work = dist.isend(outgoing, to, group) if outgoing.numel() else None
        + receive(incoming, source, group)
        + if work:
    """),
}
