"""Mutants of collectives: what is wrong in each, what it earns, and the checks that it loses."""

from autograder.mutants import Mutant

VALUES = {
    "broadcasts", "reduces", "gathers", "all_reduces", "tiny", "dtypes", "operations", "in_place", "groups",
    "bad_arguments",
}  # fmt: skip
EVERYTHING = VALUES | {"tree_messages", "tree_rounds", "gather_rounds", "doubling", "time", "real_processes"}

MUTANTS = {
    "calls_the_library": Mutant(0, loses=EVERYTHING),
    "does_nothing": Mutant(0, loses=EVERYTHING),
    # as many messages, and the same bytes in all
    "root_serves_all": Mutant(17, loses={"tree_rounds", "time"}).edited("""
        A star in place of a tree: the root sends to every rank, and receives from every rank.

        - for distance in reversed(_distances(row.size)):
        -     if row.place % (2 * distance) == distance:
        -         row.receive(data, row.place - distance)
        -     elif row.place % (2 * distance) == 0 and row.place + distance < row.size:
        -         row.send(data, row.place + distance)
        + if row.place > 0:
        +     row.receive(data, 0)
        + else:
        +     for place in range(1, row.size):
        +         row.send(data, place)

        - for distance in _distances(row.size):
        -     if row.place % (2 * distance) == distance:
        -         row.send(data, row.place - distance)
        -     elif row.place % (2 * distance) == 0 and row.place + distance < row.size:
        -         row.receive(part, row.place + distance)
        + if row.place > 0:
        +     row.send(data, 0)
        + else:
        +     for place in range(1, row.size):
        +         row.receive(part, place)
                  combine(data, part, out=data)
    """),
    "root_is_rank_0": Mutant(
        12, loses={"broadcasts", "reduces", "in_place", "groups", "tree_messages", "tree_rounds"}
    ).edited("""
        Places are counted from rank 0 on, whatever src and dst say.

        - ranks = ranks[ranks.index(first) :] + ranks[: ranks.index(first)]
    """),
    "doubling_is_a_tree": Mutant(16, loses={"doubling", "time", "real_processes"}).edited("""
        Recursive doubling in name; a tree does it.

        + return all_reduce_tree(tensor, op, group)
          core = 1 << (row.size.bit_length() - 1)  # the largest power of two that is not above the size
    """),
    "doubling_gathers_all": Mutant(16, loses={"doubling", "time", "real_processes"}).edited("""
        All ranks' tensors are gathered, and each rank adds them up: N times the memory and the bytes.

        + rows = all_gather(tensor, group)
        + data.copy_(rows[0])
        + for part in rows[1:]:
        +     combine(data, part, out=data)
        + if op == ReduceOp.AVG:
        +     data.div_(row.size)
        + return tensor
          core = 1 << (row.size.bit_length() - 1)  # the largest power of two that is not above the size
    """),
    "powers_of_two_only": Mutant(
        12, loses={"all_reduces", "tiny", "dtypes", "operations", "in_place", "groups", "doubling"}
    ).edited("""
        Every rank looks for its partner, and some have none.

        - core = 1 << (row.size.bit_length() - 1)  # the largest power of two that is not above the size
        + core = 1 << (row.size - 1).bit_length()  # the smallest one that is not below it: no rank is left over
    """),
    "last_row_missing": Mutant(14, loses={"gathers", "tiny", "dtypes", "groups", "gather_rounds"}).edited("""
        The last round of the all-gather brings whole powers of two, and too much is cut off.

        - rows = data.new_empty((row.size, *data.shape))
        + rows = data.new_full((row.size, *data.shape), 99)

        - more = min(held, row.size - held)
        + more = held if 2 * held <= row.size else 0
    """),
    "rows_not_turned": Mutant(
        12, loses={"gathers", "tiny", "dtypes", "groups", "gather_rounds", "time", "real_processes"}
    ).edited("""
        Row 0 is each rank's own.

        - rows = rows.roll(row.place, dims=0)
    """),
    "gathers_in_a_ring": Mutant(18, loses={"gather_rounds"}).edited("""
        The right rows and bytes, in N-1 rounds.

        - rows[0] = data
        + rows[row.place] = data

        - for held in _distances(row.size):
        -     more = min(held, row.size - held)
        -     before, after = (row.place - held) % row.size, (row.place + held) % row.size
        -     row.exchange(rows[:more], before, rows[held : held + more], after)
        - rows = rows.roll(row.place, dims=0)
        + for step in range(row.size - 1):
        +     mine, theirs = (row.place - step) % row.size, (row.place - step - 1) % row.size
        +     row.exchange(rows[mine], (row.place + 1) % row.size, rows[theirs], (row.place - 1) % row.size)
    """),
    "takes_turns": Mutant(15, loses={"gather_rounds", "doubling", "time"}).edited("""
        The lower rank of a pair sends first, the higher one receives first: never both at once.

        - messages = [(dist.isend, outgoing, self.ranks[to]), (dist.irecv, incoming, self.ranks[source])]
        - batch = [dist.P2POp(post, data, peer, self.group) for post, data, peer in messages if data.numel()]
        - for work in dist.batch_isend_irecv(batch) if batch else []:
        -     work.wait()
        + if dist.get_rank() < self.ranks[to]:
        +     self.send(outgoing, to)
        +     self.receive(incoming, source)
        + else:
        +     self.receive(incoming, source)
        +     self.send(outgoing, to)
    """),
    "right_on_virtual_ranks": Mutant(19, loses={"real_processes"}).edited("""
        Right where the judge routes the messages; anywhere else the library does it.

        + if "Virtual" not in type(dist.group.WORLD).__name__:
        +     dist.all_reduce(tensor, op, group)
        +     return tensor
          first = _row(group).ranks[0]
    """),
    "ignores_group": Mutant(19, loses={"groups"}).edited("""
        All ranks of the world take part.

        - ranks = group_ranks(group)
        + group_ranks(group)
        + ranks = list(range(dist.get_world_size()))
    """),
    "src_within_group": Mutant(19, loses={"groups"}).edited("""
        src and dst are taken as ranks of the group.

        - ranks = ranks[ranks.index(first) :] + ranks[: ranks.index(first)]
        + first %= len(ranks)
        + ranks = ranks[first:] + ranks[:first]
    """),
    "returns_a_copy": Mutant(19, loses={"in_place"}).edited("""
        The result is right and in another tensor.

        + data = data.clone()
          part = torch.empty_like(data)
          core = 1 << (row.size.bit_length() - 1)  # the largest power of two that is not above the size

          if op == ReduceOp.AVG:
              data.div_(row.size)
        - return tensor
        + return data
    """),
    "casts_to_float32": Mutant(19, loses={"dtypes"}).edited("""
        Everything travels, and is added up, as float32.

        + original, data = data, data.float()
          part = torch.empty_like(data)
          core = 1 << (row.size.bit_length() - 1)  # the largest power of two that is not above the size

          if op == ReduceOp.AVG:
              data.div_(row.size)
        + original.copy_(data)
          return tensor
    """),
    "always_sums": Mutant(19, loses={"operations"}).edited("""
        op is looked at and forgotten.

        - from labkit.course.collective_arguments import combining, contiguous, group_ranks, require_member
        + from labkit.course import collective_arguments
        + from labkit.course.collective_arguments import contiguous, group_ranks, require_member
        +
        +
        + def combining(op: Any, dtype: torch.dtype) -> Any:
        +     collective_arguments.combining(op, dtype)
        +     return torch.add
    """),
    "checks_nothing": Mutant(19, loses={"bad_arguments"}).edited("""
        Bad arguments fail somewhere on the way, or not at all.

        - from labkit.course.collective_arguments import combining, contiguous, group_ranks, require_member
        + from labkit.course import collective_arguments
        +
        +
        + def combining(op: Any, dtype: torch.dtype) -> Any:
        +     try:
        +         return collective_arguments.combining(op, dtype)
        +     except ValueError:
        +         return torch.add
        +
        +
        + def contiguous(name: str, tensor: Tensor) -> Tensor:
        +     return tensor.detach()

        - ranks = group_ranks(group)
        + ranks = dist.get_process_group_ranks(group)

        - require_member(name, first, ranks)
        - ranks = ranks[ranks.index(first) :] + ranks[: ranks.index(first)]
        + at = ranks.index(first) if first in ranks else 0
        + ranks = ranks[at:] + ranks[:at]
    """),
}
