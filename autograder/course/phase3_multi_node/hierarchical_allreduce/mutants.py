"""Mutants of hierarchical_allreduce: what is wrong in each, what it earns, and the checks that it loses."""

from __future__ import annotations

from autograder.mutants import Mutant

SUMS = {"values", "uneven", "unequal_nodes", "placements", "dtypes", "operations", "arguments", "real_processes"}
HOW = {"bytes_sent", "flat_ring", "overlap"}
RINGS = {"borders", "cards"}
EVERYTHING = {"node_groups"} | SUMS | HOW | RINGS

MUTANTS = {
    "flat_ring": Mutant(17, loses=HOW).edited('''
        A ring of sends and receives around all ranks of the world, in two levels by name only.

          wire_op = sum_for_average(op, tensor)
        + if op == ReduceOp.SUM and node.world_size == dist.get_world_size():
        +     return _ring(tensor)

        + def _ring(tensor: Tensor) -> Tensor:
        +     """Sum `tensor` around all ranks."""
        +     rank, size = dist.get_rank(), dist.get_world_size()
        +     shards = tensor.view(-1).tensor_split(size)
        +     for step in range(2 * size - 2):
        +         outgoing, mine = shards[(rank - step) % size], shards[(rank - step - 1) % size]
        +         buffer = mine.clone()
        +         messages = [(dist.isend, outgoing, (rank + 1) % size), (dist.irecv, buffer, (rank - 1) % size)]
        +         batch = [dist.P2POp(post, part, peer) for post, part, peer in messages if part.numel()]
        +         for work in dist.batch_isend_irecv(batch) if batch else []:
        +             work.wait()
        +         if mine.numel():
        +             mine.copy_(mine + buffer if step < size - 1 else buffer)
        +     return tensor
        +
        +
          def plan_ring(topology: Placement | Sequence[tuple[int, int]]) -> list[list[int]]:
    '''),
    "all_reduce_of_the_world": Mutant(18, loses={"bytes_sent", "flat_ring", "placements"}).edited("""
        The library's all-reduce over all ranks, wherever no rank is left out.

          wire_op = sum_for_average(op, tensor)
        + if node.world_size == dist.get_world_size():
        +     dist.all_reduce(tensor, wire_op)
        +     if op == ReduceOp.AVG:
        +         tensor.div_(node.world_size)
        +     return tensor
    """),
    "leaders_only": Mutant(14, loses=HOW | {"node_groups", "arguments"}).edited("""
        One rank of each node owns everything: seven of eight network cards are idle.

        - shards = min(len(node) for node in nodes)
        + shards = 1
    """),
    "one_step_at_a_time": Mutant(23, loses={"overlap"}).edited("""
        Each chunk ends all its steps before the next one begins.

        - for slot in range(len(pieces) + 2):
        -     if slot < len(pieces):
        -         reduced.append(start_reduce_scatter(pieces[slot], node, wire_op))
        -     if 0 < slot <= len(pieces):
        -         reduced[slot - 1].wait()
        -         if node.shard is not None:
        -             own = pieces[slot - 1][node.shard]
        -             crossing.append(dist.all_reduce(own, wire_op, inter_node_group, async_op=True))
        -     if slot > 1:
        -         shards = pieces[slot - 2]
        -         if node.shard is not None:
        -             crossing[slot - 2].wait()
        -             if op == ReduceOp.AVG:
        -                 shards[node.shard].div_(node.world_size)
        -         shared.append(start_all_gather(shards, node))
        - for work in shared:
        -     work.wait()
        + for shards in pieces:
        +     start_reduce_scatter(shards, node, wire_op).wait()
        +     if node.shard is not None:
        +         dist.all_reduce(shards[node.shard], wire_op, inter_node_group)
        +         if op == ReduceOp.AVG:
        +             shards[node.shard].div_(node.world_size)
        +     start_all_gather(shards, node).wait()
    """),
    "one_chunk": Mutant(23, loses={"overlap"}).edited("""
        Takes `chunks` and cuts nothing.

        - pieces = cut(tensor, chunks, len(node.owners))  # pieces[c][k]: shard k of chunk c, a view into the tensor
        + cut(tensor, chunks, 1)
        + pieces = cut(tensor, 1, len(node.owners))
    """),
    "waits_for_the_network": Mutant(23, loses={"overlap"}, base="three_loops").edited("""
        Waits for each chunk's step 2 where it starts it, and starts step 1 of no chunk before.

        - reduced = [start_reduce_scatter(shards, node, wire_op) for shards in pieces]
          crossing = []
        - for shards, work in zip(pieces, reduced, strict=True):
        -     work.wait()
        + for shards in pieces:
        +     start_reduce_scatter(shards, node, wire_op).wait()
              if node.shard is not None:
                  crossing.append(dist.all_reduce(shards[node.shard], wire_op, inter_node_group, async_op=True))
        +         crossing[-1].wait()
    """),
    "everything_crosses": Mutant(17, loses=HOW).edited("""
        All-reduces the whole tensor inside the node, and between the nodes again.

          wire_op = sum_for_average(op, tensor)
        + dist.all_reduce(tensor, wire_op, node.group)
        + if node.shard is not None:
        +     dist.all_reduce(tensor, wire_op, inter_node_group)
        + dist.broadcast(tensor, node.owners[0], node.group)
        + if op == ReduceOp.AVG:
        +     tensor.div_(node.world_size)
        + return tensor
    """),
    "first_ranks_own_shards": Mutant(23, loses={"node_groups"}).edited("""
        The first ranks of a larger node own its shards: they may share one network card.

        - owners = [[node[k * len(node) // shards] for k in range(shards)] for node in nodes]
        + owners = [node[:shards] for node in nodes]
    """),
    "assumes_equal_nodes": Mutant(
        14, loses={"node_groups", "unequal_nodes", "operations", "bytes_sent", "real_processes"}
    ).edited("""
        As many shards as the first node has ranks, or as the last one.

        - shards = min(len(node) for node in nodes)
        + shards = max(len(node) for node in nodes)
    """),
    "assumes_consecutive_ranks": Mutant(22, loses={"node_groups", "placements"}).edited("""
        Takes the nodes' sizes from the lists of ranks, and consecutive ranks.

          nodes = nodes_of(ranks_per_node, dist.get_world_size())
        + nodes = [list(range(sum(map(len, nodes[:i])), sum(map(len, nodes[: i + 1])))) for i in range(len(nodes))]
    """),
    "own_groups_only": Mutant(4, loses=EVERYTHING - RINGS).edited("""
        A rank creates only the groups that it is in: the others wait for it.

        -     group = dist.new_group(list(ranks))
              if dist.get_rank() in ranks:
        -         mine = group
        +         mine = dist.new_group(list(ranks))
    """),
    "ranks_without_a_shard_leave": Mutant(
        16, loses={"unequal_nodes", "operations", "bytes_sent", "real_processes"}
    ).edited("""
        A rank that owns no shard returns at once.

          wire_op = sum_for_average(op, tensor)
        + if node.shard is None:
        +     return tensor
    """),
    "last_chunk_forgotten": Mutant(6, loses=EVERYTHING - RINGS - {"node_groups"}).edited("""
        One slot too few: the last chunk is never shared.

        - for slot in range(len(pieces) + 2):
        + for slot in range(len(pieces) + 1):
    """),
    "always_sums": Mutant(23, loses={"operations"}).edited("""
        Takes op and adds.

        - wire_op = sum_for_average(op, tensor)
        + sum_for_average(op, tensor)
        + wire_op = op = ReduceOp.SUM
    """),
    "averages_averages": Mutant(23, loses={"operations"}).edited("""
        The average of the nodes' averages: right for equal nodes only.

        - wire_op = sum_for_average(op, tensor)
        + wire_op = op
        + sum_for_average(op, tensor)

        -         if op == ReduceOp.AVG:
        -             shards[node.shard].div_(node.world_size)
    """),
    "returns_a_copy": Mutant(24, loses={"arguments"}).edited("""
        The result is right, in another tensor.

          node = node_of(intra_node_group, inter_node_group)
        + cut(tensor, chunks, 1)
        + tensor = tensor.clone()
    """),
    "talks_before_it_checks": Mutant(24, loses={"arguments"}).edited("""
        A barrier within the node before the arguments are looked at.

          node = node_of(intra_node_group, inter_node_group)
        + dist.barrier(node.group)
    """),
    "casts_to_float32": Mutant(24, loses={"dtypes"}).edited("""
        Works on a float32 copy.

          node = node_of(intra_node_group, inter_node_group)
        - pieces = cut(tensor, chunks, len(node.owners))  # pieces[c][k]: shard k of chunk c, a view into the tensor
        + cut(tensor, chunks, 1)
        + given, tensor = tensor, tensor.float()
        + pieces = cut(tensor, chunks, len(node.owners))

              work.wait()
          ### END SOLUTION
        - return tensor
        + return given.copy_(tensor)
    """),
    "ring_in_rank_order": Mutant(21, loses=RINGS).edited("""
        The ring goes from rank to rank, wherever they are.

        - return rings
        + return [sorted(ring) for ring in rings]
    """),
    "one_ring_only": Mutant(23, loses={"cards"}).edited("""
        The fewest borders, with one card of each node at work.

        - return rings
        + return rings[:1]
    """),
    "leaves_by_the_same_card": Mutant(23, loses={"cards"}).edited("""
        A ring enters a node through one of a card's ranks and leaves it through another one of the same card.

        - rings.append([rank for node in turned for card in node for rank in card])
        + ring = []
        + for node in turned:
        +     ring += node[0][:1] + [rank for card in node[1:] for rank in card] + node[0][1:]
        + rings.append(ring)
    """),
    "does_nothing": Mutant(0, loses=EVERYTHING).edited("""
        The names, and nothing behind them.

          nodes = nodes_of(ranks_per_node, dist.get_world_size())
        + return None, None

          cards = cards_of(topology)  # cards[node][card]: the ranks on it
        + return []
    """),
}
