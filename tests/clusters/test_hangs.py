"""Diagnosis of ranks that wait in vain, from rank statuses made by hand. test_hanging_ranks.py makes real ones."""

from __future__ import annotations

from labkit.clusters.hangs import findings, is_hang, table
from labkit.clusters.rank_status import PendingOperation, RankStatus


def at(line: int, text: str) -> tuple[tuple[str, int, str, str], ...]:
    return (("Cell In[3]", line, "<module>", text),)


def collective(
    name: str, sequence: int, line: int, ranks: tuple[int, ...] = (0, 1, 2, 3), nbytes: int = 0
) -> PendingOperation:
    place = f"Cell In[3], line {line}"
    label = "0" if len(ranks) == 4 else str(ranks)
    return PendingOperation("collective", name, label, ranks, sequence, nbytes=nbytes, line=place, waited_for=True)


def message(kind: str, peer: int, line: int, tag: int = 0) -> PendingOperation:
    name = "send" if kind == "send" else "recv"
    return PendingOperation(
        kind, name, "0", (0, 1, 2, 3), peer=peer, tag=tag, nbytes=16, line=f"Cell In[3], line {line}", waited_for=True
    )


def waiting(rank: int, operation: PendingOperation, text: str = "dist.all_reduce(x)") -> RankStatus:
    return RankStatus(rank, at(int(operation.line.split()[-1]), text), True, (operation,))


def test_mismatched_collectives_name_both_sides() -> None:
    reduce, barrier = collective("all_reduce", 6, 9, nbytes=4096), collective("barrier", 6, 12)
    statuses = [waiting(rank, reduce) for rank in (0, 1, 3)] + [waiting(2, barrier, "dist.barrier()")]
    assert table(statuses) == [
        "[0-1, 3]  Cell In[3], line 9: dist.all_reduce(x)  waits in all_reduce #7 of the group 0-3, 4.1 kB",
        "[2]       Cell In[3], line 12: dist.barrier()     waits in barrier #7 of the group 0-3",
    ]
    assert findings(statuses) == [
        "call #7 of the group 0-3 differs: ranks 0-1, 3 wait in all_reduce at line 9, rank 2 waits in barrier "
        "at line 12",
        "try: all ranks of a group must call the same collectives, in the same order",
    ]


def test_a_rank_that_sleeps_is_the_one_that_is_missing() -> None:
    statuses = [waiting(rank, collective("barrier", 0, 9), "dist.barrier()") for rank in (0, 1, 3)]
    statuses.append(RankStatus(2, at(5, "time.sleep(60)")))
    assert findings(statuses) == [
        "barrier #1 of the group 0-3: ranks 0-1, 3 wait in it at line 9, "
        "rank 2 is missing: it is at line 5: time.sleep(60)",
        "try: find out why rank 2 does not get past Cell In[3], line 5",
    ]


def test_ranks_that_ended_will_not_come() -> None:
    statuses = [waiting(0, collective("barrier", 0, 9)), *(RankStatus(rank, exit=0) for rank in (1, 2, 3))]
    assert table(statuses)[1] == "[1-3]  has ended"
    assert findings(statuses) == [
        "barrier #1 of the group 0-3: rank 0 waits in it at line 9, ranks 1-3 are missing: they have ended",
        "try: every rank of a group must make all of its calls; ranks 1-3 ended without making this one",
    ]


def test_a_chain_leads_to_its_cause_alone() -> None:
    statuses = [waiting(rank, message("receive", rank + 1, 8), "dist.recv(x, rank + 1)") for rank in (0, 1, 2)]
    statuses.append(RankStatus(3, at(5, "lock.acquire()")))
    assert findings(statuses) == [
        "rank 2 waits in recv from rank 3, 16 B at line 8, rank 3 is missing: it is at line 5: lock.acquire()",
        "try: every receive needs a send: rank 3 must call send(..., dst=2)",
    ]


def test_a_circle_of_sends_has_the_words_of_virtual_ranks() -> None:
    lines = findings([waiting(rank, message("send", (rank + 1) % 4, 8)) for rank in range(4)])
    assert lines[-2:][0] == "cycle: 0 → 1 → 2 → 3 → 0"
    assert lines[-1].startswith("try: each of them sends first, and a send ends only when its receive is posted")
    lines = findings([waiting(rank, message("receive", (rank + 1) % 4, 8)) for rank in range(4)])
    assert lines[-1] == "try: each of them receives first, so nobody sends: let one of them send first"


def test_a_wrong_peer_and_a_wrong_tag() -> None:
    lines = findings([waiting(0, message("send", 1, 8)), waiting(1, message("receive", 2, 9))])
    assert "rank 0 waits in send to rank 1, 16 B at line 8, but rank 1 receives from rank 2" in lines
    lines = findings([waiting(0, message("send", 1, 8, tag=1)), waiting(1, message("receive", 0, 9, tag=2))])
    assert (
        lines[0] == "rank 0 waits in send to rank 1, 16 B, tag 1 at line 8, but rank 1 receives from rank 0 with tag 2"
    )


def test_groups_in_another_order() -> None:
    a, b = (0, 1), (0, 1, 2, 3)
    first = [waiting(0, collective("all_reduce", 0, 8, a)), waiting(1, collective("all_reduce", 0, 9, b))]
    lines = findings(
        [*first, waiting(2, collective("all_reduce", 0, 9, b)), waiting(3, collective("all_reduce", 0, 9, b))]
    )
    assert lines[-2] == "cycle: 0 → 1 → 0"
    assert "they are in collectives of 2 different groups (0-1, 0-3)" in lines[-1]


def test_a_rank_may_be_past_a_call_or_give_another_size() -> None:
    statuses = [waiting(rank, collective("broadcast", 2, 9)) for rank in (1, 2, 3)]
    lines = findings([waiting(0, collective("barrier", 4, 12)), *statuses])
    assert lines[0].endswith(
        "ranks 1-3 wait in it at line 9, rank 0 is already past it: it waits in barrier #5 at line 12"
    )
    sizes = [waiting(rank, collective("all_gather", 2, 9, nbytes=8 * (rank + 1))) for rank in range(4)]
    assert "with 8 B on rank 0, 16 B on rank 1, 24 B on rank 2, 32 B on rank 3" in findings(sizes)[0]
    assert findings(sizes)[-1] == "try: all ranks of a group must pass tensors of the same shape and dtype"


def test_waiting_for_ranks_to_appear() -> None:
    start = PendingOperation("other", "init_process_group", line="Cell In[3], line 2", waited_for=True)
    statuses = [waiting(rank, start, "dist.init_process_group()") for rank in (0, 1)]
    statuses.append(RankStatus(2, at(4, "queue.get()")))
    assert findings(statuses)[0] == (
        "ranks 0-1 wait in init_process_group at line 2, rank 2 is missing: it is at line 4: queue.get()"
    )


def test_a_cell_on_some_of_the_ranks_of_a_group_that_stay() -> None:
    statuses = [waiting(rank, collective("barrier", 2, 9)) for rank in (0, 1)]
    statuses += [RankStatus(rank, apart=True) for rank in (2, 3)]
    assert table(statuses)[1] == "[2-3]  not part of this cell, which runs on other ranks"
    assert findings(statuses) == [
        "barrier #3 of the group 0-3: ranks 0-1 wait in it at line 9, "
        "ranks 2-3 do not take part: the cell does not run there",
        "try: the cell ran only on ranks 0-1, but the group includes ranks 2-3: leave out --ranks",
    ]


def test_a_root_may_differ_where_nobody_is_missing() -> None:
    statuses = [waiting(rank, collective("broadcast", 2, 9)) for rank in range(4)]
    assert findings(statuses)[-1].endswith("all must pass the same src or dst")


def test_ranks_of_which_nothing_is_known_have_no_row() -> None:
    assert table([RankStatus(rank, under_way=None) for rank in range(4)]) == []
    assert table([RankStatus(0, at(4, "spin()"), under_way=None), RankStatus(1, under_way=None)]) == [
        "[0]  Cell In[3], line 4: spin()"
    ]


def test_an_operation_that_nobody_waits_for_is_no_hang() -> None:
    posted = PendingOperation("send", "isend", "0", (0, 1), peer=1, line="Cell In[3], line 2")
    busy = RankStatus(0, at(5, "time.sleep(60)"), False, (posted,))
    assert not is_hang([busy, RankStatus(1, at(6, "input()"))])
    assert is_hang([busy, waiting(1, message("receive", 0, 9))])
    backward = PendingOperation("collective", "all_reduce", "0", (0, 1), 3, line="Cell In[3], line 7")
    assert is_hang([RankStatus(0, at(7, "loss.backward()"), True, (backward,))]), "it waits within torch's C++ code"
