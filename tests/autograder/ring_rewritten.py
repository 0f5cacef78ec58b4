"""Five of the ring's answers, rewritten by hand as someone might who wants to hide copying.

They were written after the thresholds were set, and none was changed for them.
"""

REWRITTEN = {
    "swapping_buffers": (
        """
running_total = shards[(ring.rank + ring.size - 1) % ring.size].clone()
number = 2
while number <= ring.size:
    here = shards[(ring.rank - number) % ring.size]
    from_left = torch.empty_like(here)
    _exchange(running_total, from_left, ring)
    running_total = combine(here, from_left)
    number = number + 1
shards[ring.rank].copy_(running_total)
""",
        """
traveller = own.clone()
target = shards[ring.rank]
target.copy_(traveller)
k = 1
while k < ring.size:
    slot = shards[(ring.rank - k) % ring.size]
    from_left = torch.zeros_like(slot)
    _exchange(traveller, from_left, ring)
    slot.copy_(from_left)
    traveller = from_left
    k += 1
""",
        """
chunk = ring_reduce_scatter(tensor, group, op=op)
chunk = chunk.clone()
ring_all_gather(chunk, group, out=tensor)
""",
    ),
    "parity": (
        """
first = (ring.rank % 2) == 0

def talk(sending, receiving):
    if first and len(sending) > 0:
        dist.send(sending, ring.right, group=group)
    if len(receiving) > 0:
        dist.recv(receiving, ring.left, group=group)
    if not first and len(sending) > 0:
        dist.send(sending, ring.right, group=group)

for i in range(ring.size - 1):
    out_index = (ring.rank - 1 - i) % ring.size
    in_index = (ring.rank - 2 - i) % ring.size
    room = buffer[: shards[in_index].numel()]
    talk(shards[out_index], room)
    if len(room) > 0:
        result = combine(shards[in_index], room)
        shards[in_index].copy_(result)
""",
        """
shards[ring.rank].copy_(own)
first = (ring.rank % 2) == 0
for i in range(ring.size - 1):
    out_index = (ring.rank - i) % ring.size
    in_index = (ring.rank - 1 - i) % ring.size
    if first and len(shards[out_index]) > 0:
        dist.send(shards[out_index], ring.right, group=group)
    if len(shards[in_index]) > 0:
        dist.recv(shards[in_index], ring.left, group=group)
    if not first and len(shards[out_index]) > 0:
        dist.send(shards[out_index], ring.right, group=group)
""",
        """
a = ring_reduce_scatter(tensor, group, op=op)
b = ring_all_gather(a, group, out=tensor)
""",
    ),
    "while_loop": (
        """
for left_over in range(ring.size - 1, 0, -1):
    position = ring.rank + left_over
    give = shards[position % ring.size]
    take = shards[(position - 1) % ring.size]
    room = buffer[: take.numel()]
    _exchange(give, room, ring)
    summed = combine(take, room)
    take.copy_(summed)
""",
        """
mine = shards[ring.rank]
if mine.data_ptr() != own.data_ptr():
    mine.copy_(own)
for left_over in range(ring.size, 1, -1):
    position = ring.rank + left_over
    _exchange(shards[position % ring.size], shards[(position - 1) % ring.size], ring)
""",
        """
scattered = ring_reduce_scatter(tensor, group, op=op)
result = ring_all_gather(scattered, group, out=tensor)
return result
""",
    ),
    "own_messages": (
        """
for k in range(1, ring.size):
    going = shards[ring.rank - k]
    coming = shards[ring.rank - k - 1]
    pending = []
    if going.numel() > 0:
        pending.append(dist.isend(going, ring.right, group))
    if coming.numel() > 0:
        dist.recv(buffer[: coming.numel()], ring.left, group)
        combine(coming, buffer[: coming.numel()], out=coming)
    for p in pending:
        p.wait()
""",
        """
shards[ring.rank].copy_(own)
for k in range(0, ring.size - 1):
    going = shards[ring.rank - k]
    coming = shards[ring.rank - k - 1]
    pending = []
    if going.numel() > 0:
        pending.append(dist.isend(going, ring.right, group))
    if coming.numel() > 0:
        dist.recv(coming, ring.left, group)
    for p in pending:
        p.wait()
""",
        """
x = ring_reduce_scatter(tensor, group, op=op)
ring_all_gather(x, group, out=tensor)
""",
    ),
    "rotated": (
        """
queue = shards[ring.rank :] + shards[: ring.rank]
while len(queue) >= 2:
    last = queue.pop()
    before = queue[-1]
    place = buffer[: before.numel()]
    _exchange(last, place, ring)
    before.copy_(combine(before, place))
""",
        """
queue = shards[ring.rank + 1 :]
queue = queue + shards[: ring.rank + 1]
queue[-1].copy_(own)
for _ in range(ring.size - 1):
    last = queue.pop()
    before = queue[-1]
    _exchange(last, before, ring)
""",
        """
r = ring_reduce_scatter(tensor, group, op=op)
r = ring_all_gather(r, group, out=tensor)
""",
    ),
}
