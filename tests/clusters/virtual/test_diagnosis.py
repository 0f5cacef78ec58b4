"""Failures are explained at once: which rank, which operation, which line of the cell, who waits for which rank."""

from __future__ import annotations

from textwrap import dedent

import pytest
from clocks import LateClock
from waiting import BROKEN_SECONDS

from labkit import Job, Run, virtual
from labkit.clusters.forkserver.client import shared

HEAD = """\
import torch, torch.distributed as dist
dist.init_process_group()
rank, n = dist.get_rank(), dist.get_world_size()
x = torch.ones(4)
"""


def run(source: str, ranks: int = 4) -> Run:
    return virtual(nproc_per_node=ranks).run(Job(source=HEAD + dedent(source).strip("\n"), filename="Cell In[7]"))


def errors(result: Run) -> list[str]:
    return [rank.error.type if rank.error else "" for rank in result.ranks]


def test_everybody_sends_first() -> None:
    result = run("dist.send(x, (rank + 1) % n)\ndist.recv(x, (rank - 1) % n)")
    assert errors(result) == ["DeadlockError"] * 4
    message = result.diagnosis()
    assert "on every rank at Cell In[7], line 5" in message
    assert "rank 2 waits in send(to rank 3, float32[4]) at Cell In[7], line 5" in message
    assert "cycle: 0 → 1 → 2 → 3 → 0" in message
    assert "isend" in message, "it says what to try"


def test_a_wrong_neighbour_is_told_from_an_order_of_calls() -> None:
    result = run(
        """
        sending = dist.isend(x, (rank + 2) % n)
        receiving = dist.irecv(torch.empty(4), (rank - 1) % n)
        sending.wait(); receiving.wait()
        """
    )
    assert "rank 0 waits in isend(to rank 2, float32[4]) at Cell In[7], line 5, but rank 2 receives from rank 1" in (
        result.diagnosis()
    )
    assert "post the send with isend" not in result.diagnosis()


def test_isend_that_is_waited_for_before_the_receive_deadlocks_too() -> None:
    result = run("dist.isend(x, (rank + 1) % n).wait()\ndist.recv(x, (rank - 1) % n)")
    assert errors(result) == ["DeadlockError"] * 4


def test_a_cycle_among_some_ranks_is_found_and_the_others_hang_on_it() -> None:
    result = run(
        """
        if rank in (1, 2):
            dist.recv(x, 3 - rank)
        dist.barrier()
        """
    )
    assert errors(result) == ["DeadlockError"] * 4
    assert "cycle: 1 → 2 → 1" in result.diagnosis()


def test_a_rank_that_skips_a_barrier() -> None:
    result = run("if rank != 2:\n    dist.barrier()")
    assert errors(result) == ["DeadlockError", "DeadlockError", "", "DeadlockError"]
    assert "for rank 2 of the group of ranks 0-3, but rank 2 ended without it" in result.diagnosis()


def test_mismatched_collectives_in_a_sub_group() -> None:
    result = run(
        """
        pair = dist.new_group([1, 3])
        if rank == 1:
            dist.all_reduce(x, group=pair)
        if rank == 3:
            dist.broadcast(x, 3, group=pair)
        """
    )
    assert errors(result) == ["", "MismatchError", "", "MismatchError"]
    message = result.diagnosis()
    assert "call number 1 in the group of ranks 1, 3 differs" in message
    assert "rank 1 called all_reduce(float32[4], SUM) (Cell In[7], line 7)" in message
    assert "rank 3 called broadcast(float32[4], root 1) (Cell In[7], line 9)" in message


def test_each_rank_of_a_mismatch_has_its_own_line() -> None:
    result = run("if rank == 1:\n    dist.all_reduce(torch.ones(5))\nelse:\n    dist.all_reduce(x)", ranks=2)
    lines = [rank.error.frames[-1][1] for rank in result.ranks if rank.error]
    assert lines == [8, 6]


def test_different_order_in_two_groups() -> None:
    result = run(
        """
        a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
        for group in (a, b) if rank == 0 else (b, a):
            dist.all_reduce(x, group=group)
        """,
        ranks=2,
    )
    assert errors(result) == ["DeadlockError", "DeadlockError"]
    assert "cycle: 0 → 1 → 0" in result.diagnosis()


def test_new_group_with_other_ranks() -> None:
    result = run("group = dist.new_group([0, 1] if rank == 0 else [1, 0, 2])")
    assert "MismatchError" in errors(result)
    assert "every rank must call new_group" in result.diagnosis()


def test_message_of_another_size_or_dtype() -> None:
    result = run("dist.send(x, 1) if rank == 0 else dist.recv(torch.empty(5), 0)", ranks=2)
    assert errors(result) == ["MismatchError"] * 2
    assert "rank 0 sends float32[4] (Cell In[7], line 5), but rank 1 receives into float32[5]" in result.diagnosis()
    result = run("dist.send(x, 1) if rank == 0 else dist.recv(torch.empty(4, dtype=torch.int32), 0)", ranks=2)
    assert errors(result) == ["MismatchError"] * 2


def test_the_rank_that_failed_comes_first_and_the_others_are_consequences() -> None:
    result = run("if rank == 2:\n    x = x @ torch.ones(5)\ndist.all_reduce(x)")
    assert errors(result) == ["PeerFailed", "PeerFailed", "RuntimeError", "PeerFailed"]
    message = result.diagnosis().splitlines()
    assert message[0].startswith("RuntimeError on rank 2 at Cell In[7], line 6: ")
    assert message[-1] == "ranks 0-1, 3 stopped because of it"
    assert "x = float32[4]" in result.diagnosis()


def test_a_helper_that_waits_is_named_with_the_line_that_called_it() -> None:
    message = run("def receive(source):\n    dist.recv(x, source)\nreceive((rank + 1) % n)").diagnosis()
    assert "at Cell In[7], line 6" in message.splitlines()[0]
    assert "called in <module>, line 7: receive((rank + 1) % n)" in message


def test_many_ranks_are_folded() -> None:
    result = run("dist.recv(x, (rank + 1) % n)", ranks=64)
    message = result.diagnosis()
    assert len(message.splitlines()) < 12
    assert "... and so do ranks 2-63" in message


def test_a_rank_that_never_ends_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LateClock()
    monkeypatch.setattr(shared(), "clock", clock)
    source = HEAD + "if rank == 1:\n    print('here')\n    while True:\n        pass\ndist.barrier()"
    job = Job(source=source, filename="Cell In[7]", timeout=1)
    result = virtual(nproc_per_node=3).run(job, lambda *_: clock.start())
    assert result.stopped == "timeout after 1 s"
    where = [rank.error.frames[-1][1] if rank.error and rank.error.frames else None for rank in result.ranks]
    assert where[0] == 9
    assert where[1] in (7, 8)
    assert where[2] is None, "its turn never came"


def test_a_rank_that_exits_early_is_named() -> None:
    result = run("import sys\nif rank == 1:\n    sys.exit(3)\ndist.barrier()", ranks=2)
    assert result.ranks[1].exit == 3
    assert result.diagnosis().startswith("rank 1 ended with exit code 3")


def test_a_wrong_tag_shows_both() -> None:
    result = run("if rank == 0:\n    dist.send(x, 1, tag=1)\nelse:\n    dist.recv(x, 0, tag=2)", ranks=2)
    report = result.diagnosis()
    assert "rank 0 waits in send(to rank 1, float32[4], tag 1)" in report
    assert "rank 1 waits in recv(from rank 0, float32[4], tag 2)" in report


def test_everybody_receives_first() -> None:
    assert "let one of them send first" in run("dist.recv(x, (rank - 1) % n)").diagnosis()


def test_a_mismatch_of_many_ranks_is_folded() -> None:
    report = run("dist.broadcast(x, src=rank)", ranks=64).diagnosis()
    assert "in the group of ranks 0-63 differs" in report and "... and 56 more that differ" in report


def test_a_tensor_for_the_gpu_is_told_where_virtual_ranks_have_theirs() -> None:
    for line in ("torch.cuda.set_device(0)", "x.cuda()", "torch.ones(1, device='cuda')"):
        result = run(line, ranks=2)
        assert errors(result) == ["RuntimeError"] * 2 and 'use the device "cpu"' in result.diagnosis()
    assert run("assert not torch.cuda.is_available()").ok


def test_nccl_groups_warn_of_nothing() -> None:
    source = "import torch.distributed as dist\ndist.init_process_group('nccl')"
    assert all(not rank.output for rank in virtual(nproc_per_node=2).run(Job(source=source)).ranks)


def test_a_polling_loop_that_cannot_end_is_a_deadlock() -> None:
    source = """
import torch, torch.distributed as dist, time
dist.init_process_group()
if dist.get_rank() == 1:
    work = dist.irecv(torch.zeros(3), 0)
    while not work.is_completed():
        time.sleep(1e-4)
if dist.get_rank() == 2:
    dist.recv(torch.zeros(3), 1)
"""
    found = virtual(nproc_per_node=3).run(Job(source=source, filename="Cell In[1]", timeout=BROKEN_SECONDS))
    assert [rank.error and rank.error.type for rank in found.ranks] == [None, "DeadlockError", "PeerFailed"]
    error = found.ranks[1].error
    assert error is not None and "rank 1 waits in irecv(from rank 0, float32[3]) at Cell In[1], line 5" in error.message
    assert "rank 0 ended without it" in error.message


def test_a_loop_that_polls_often_and_then_acts_is_none() -> None:
    source = """
import torch, torch.distributed as dist
dist.init_process_group()
x = torch.zeros(3)
if dist.get_rank() == 1:
    work = dist.irecv(x, 0)
    for _ in range(50_000):
        work.is_completed()
    dist.send(x, 0)
    work.wait()
else:
    dist.recv(x, 1)
    dist.send(x + 1, 1)
x.tolist()
"""
    assert virtual(nproc_per_node=2).run(Job(source=source)).raise_if_failed().values[1] == [1.0, 1.0, 1.0]


def test_a_rank_that_says_it_is_another_or_one_of_others_is_told() -> None:
    source = "import torch.distributed as dist\ndist.init_process_group('gloo', rank=0, world_size=2)"
    found = virtual(nproc_per_node=3).run(Job(source=source))
    messages = [rank.error.message if rank.error else "" for rank in found.ranks]
    assert all("init_process_group(" in message and "leave it out" in message for message in messages)
