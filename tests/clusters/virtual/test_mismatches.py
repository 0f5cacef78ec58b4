"""Mismatched collectives are reported: who called what, at which line, and who did not join."""

from __future__ import annotations

from textwrap import dedent
from typing import Literal

import pytest
from waiting import BROKEN_SECONDS

from labkit import Job, Run, virtual

HEAD = """\
import torch, torch.distributed as dist
dist.init_process_group(BACKEND)
rank, n = dist.get_rank(), dist.get_world_size()
x = torch.ones(4)
"""
KINDS: list[Literal["threads", "processes"]] = ["threads", "processes"]


def run(source: str, ranks: int = 4, kind: Literal["threads", "processes"] = "threads", backend: str = "gloo") -> Run:
    text = HEAD.replace("BACKEND", repr(backend)) + dedent(source).strip("\n")
    return virtual(nproc_per_node=ranks, ranks=kind).run(
        Job(source=text, filename="Cell In[7]", timeout=BROKEN_SECONDS)
    )


def errors(result: Run) -> list[str]:
    return [rank.error.type if rank.error else "" for rank in result.ranks]


@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_of_a_mismatch_are_named_with_their_lines(kind: Literal["threads", "processes"]) -> None:
    result = run(
        """
        if rank == 1:
            dist.broadcast(x, 0)
        elif rank == 3:
            dist.all_reduce(torch.ones(5))
        else:
            dist.all_reduce(x)
        """,
        kind=kind,
    )
    assert errors(result) == ["MismatchError"] * 4
    message = result.diagnosis()
    assert "call number 1 in the group of ranks 0-3 differs:" in message
    assert "ranks 0, 2 called all_reduce(float32[4], SUM) (Cell In[7], line 10)" in message
    assert "rank 1 called broadcast(float32[4], root 0) (Cell In[7], line 6)" in message
    assert "rank 3 called all_reduce(float32[5], SUM) (Cell In[7], line 8)" in message


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        ("dist.all_reduce(x, dist.ReduceOp.MAX)", "rank 1 called all_reduce(float32[4], MAX)"),
        ("dist.all_reduce(x.double())", "rank 1 called all_reduce(float64[4], SUM)"),
        ("dist.all_reduce(x[:3])", "rank 1 called all_reduce(float32[3], SUM)"),
        ("dist.reduce(x, 0)", "rank 1 called reduce(float32[4], SUM, root 0)"),
        ("dist.barrier()", "rank 1 called barrier()"),
        ("dist.all_gather([torch.ones(4)] * 2, x)", "rank 1 called all_gather(float32[4])"),
    ],
)
def test_what_differs_is_shown(other: str, shown: str) -> None:
    message = run(f"if rank == 1:\n    {other}\nelse:\n    dist.all_reduce(x)", ranks=2).diagnosis()
    assert "rank 0 called all_reduce(float32[4], SUM) (Cell In[7], line 8)" in message
    assert f"{shown} (Cell In[7], line 6)" in message


def test_another_root() -> None:
    message = run("dist.broadcast(x, rank)", ranks=2).diagnosis()
    assert "rank 0 called broadcast(float32[4], root 0)" in message
    assert "rank 1 called broadcast(float32[4], root 1)" in message


def test_who_did_not_come_and_who_had_ended_is_said_too() -> None:
    result = run(
        """
        if rank == 0:
            dist.all_reduce(x)
        elif rank == 1:
            dist.broadcast(x, 0)
        elif rank == 2:
            dist.recv(x, 0)
        """
    )
    assert errors(result)[:2] == ["MismatchError"] * 2
    message = result.diagnosis()
    assert "rank 3 ended without it" in message
    assert "rank 2 did not come to it" in message


def test_a_mismatch_of_an_asynchronous_collective_is_told_when_it_is_waited_for() -> None:
    result = run(
        """
        work = dist.all_reduce(x if rank else x.double(), async_op=True)
        y = torch.ones(1) + rank
        work.wait()
        """,
        ranks=2,
    )
    assert errors(result) == ["MismatchError"] * 2
    assert [rank.error.frames[-1][1] for rank in result.ranks if rank.error] == [7, 7]
    assert "(Cell In[7], line 5)" in result.diagnosis()


def test_the_second_call_of_a_loop_is_numbered() -> None:
    message = run("for i in range(3):\n    dist.all_reduce(x[: 4 - (i == 1 and rank == 2)])").diagnosis()
    assert "call number 2 in the group of ranks 0-3 differs" in message
    assert "rank 2 called all_reduce(float32[3], SUM)" in message


@pytest.mark.parametrize("kind", KINDS)
def test_two_groups_in_different_order(kind: Literal["threads", "processes"]) -> None:
    result = run(
        """
        a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
        for group in (a, b) if rank == 0 else (b, a):
            dist.all_reduce(x, group=group)
        """,
        ranks=2,
        kind=kind,
    )
    assert errors(result) == ["DeadlockError"] * 2
    assert "collectives of 2 different groups (1, 2)" in result.diagnosis()
    assert "in the same order" in result.diagnosis()


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_that_another_rank_does_not_expect(kind: Literal["threads", "processes"]) -> None:
    result = run(
        """
        gives = [2, 3] if rank == 0 else [1, 1]
        gets = [2, 1] if rank == 0 else [2, 1]
        dist.all_to_all_single(torch.zeros(3), torch.ones(sum(gives)), gets, gives)
        """,
        ranks=2,
        kind=kind,
    )
    assert errors(result) == ["MismatchError"] * 2
    assert "in all_to_all, rank 0 sends 3 elements to rank 1 (Cell In[7], line 7), which expects 2" in (
        result.diagnosis()
    )
    message = run("dist.scatter(x, [x] * 2 if rank == 0 else None, 0) if rank == 0 else dist.scatter(x[:2], src=0)", 2)
    assert "in scatter, rank 0 sends 4 elements to rank 1" in message.diagnosis()


@pytest.mark.parametrize("kind", KINDS)
def test_a_monitored_barrier_names_who_is_missing(kind: Literal["threads", "processes"]) -> None:
    source = """
        import datetime
        if rank in (1, 3):
            dist.recv(x, 0)
        else:
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=20))
    """
    result = run(source, kind=kind)
    first = result.ranks[0].error
    assert first is not None and first.type == "RuntimeError"
    assert first.message.startswith("[Rank 0]: Rank 1 failed to pass monitoredBarrier in 20000 ms (Cell In[7], line 9)")
    assert first.message.strip().endswith("of the missing ranks 1, 3")
    assert first.time == pytest.approx(20.0, rel=1e-3)


def test_a_monitored_barrier_lets_all_pass_that_come_in_time_and_tells_those_who_come_later() -> None:
    source = """
        import datetime, time
        time.sleep(rank * SECONDS)
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=5))
    """
    assert run(source.replace("SECONDS", "2"), ranks=3).ok
    result = run(source.replace("SECONDS", "3"), ranks=3)
    assert [rank.error.message.split(" in ")[0] for rank in result.ranks if rank.error] == [
        "[Rank 0]: Rank 2 failed to pass monitoredBarrier",
        "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. "
        "[Rank 0]: Rank 2 failed to pass monitoredBarrier",
        "came too late: [Rank 0]: Rank 2 failed to pass monitoredBarrier",
    ]


NCCL = """
found = {}
def attempt(name, call):
    try:
        found[name] = call()
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
def summed(x, op):
    dist.all_reduce(x, op)
    return x.tolist()
attempt("AVG", lambda: summed(torch.tensor([rank, -1 - rank]), dist.ReduceOp.AVG))
attempt("AVG bool", lambda: summed(torch.ones(1, dtype=torch.bool), dist.ReduceOp.AVG))
attempt("BAND", lambda: summed(torch.ones(1, dtype=torch.int64), dist.ReduceOp.BAND))
attempt("PREMUL", lambda: summed(torch.ones(2), dist._make_nccl_premul_sum(rank + 1.0)))
attempt("short", lambda: summed(torch.ones(2, dtype=torch.int16), dist.ReduceOp.SUM))
attempt("transposed", lambda: summed(torch.ones(2, 3).t(), dist.ReduceOp.SUM))
attempt("monitored", lambda: dist.monitored_barrier())
uneven = [torch.zeros(i + 1) for i in range(n)]
dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
halves = dist.split_group(split_ranks=[[0, 2], [1]])
dist.all_reduce(x, group=halves)
found, [t.tolist() for t in uneven], x.tolist(), dist.get_process_group_ranks(halves)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_that_asked_for_nccl_does_and_refuses_what_nccl_does_and_refuses(
    kind: Literal["threads", "processes"],
) -> None:
    values = run(NCCL, ranks=3, kind=kind, backend="nccl").raise_if_failed().values
    found, uneven, halves, members = values[0]
    assert found == {
        "AVG": [1, -2],
        "AVG bool": "TypeError: Cannot use ReduceOp.AVG with boolean inputs",
        "BAND": "ValueError: Cannot use ReduceOp.BAND with NCCL",
        "PREMUL": [6.0, 6.0],
        "short": "TypeError: Input tensor data type is not supported for NCCL process group: int16",
        "transposed": "ValueError: Tensors must be contiguous",
        "monitored": "ValueError: monitored_barrier is only implemented for GLOO backend.",
    }
    assert uneven == [[0.0], [1.0, 1.0], [2.0, 2.0, 2.0]]
    assert (halves, members) == ([2.0] * 4, [0, 2])
    assert values[1][2:] == ([1.0] * 4, [1])


def test_no_other_backend() -> None:
    message = run("", ranks=2, backend="mpi").diagnosis()
    assert "NotImplementedError on every rank" in message
    assert "gloo and nccl, not 'mpi'" in message


def test_a_group_made_after_another_init_is_another_group() -> None:
    source = """
        first = dist.new_group([0, 1])
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        second = dist.new_group([1, 2, 3])
        if rank:
            dist.all_reduce(x, group=second)
        x.tolist()
    """
    assert run(source).raise_if_failed().values == [[1.0] * 4] + [[3.0] * 4] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_before_wait_past_torchs_operators_is_noticed(kind: Literal["threads", "processes"]) -> None:
    source = "work = dist.all_reduce(x, async_op=True)\nx.numpy()[0] = 7\nwork.wait()"
    result = run(source, ranks=2, kind=kind)
    assert errors(result) == ["UsedBeforeWait"] * 2
    assert "all_reduce (Cell In[7], line 5) was written to before its wait()" in result.diagnosis()


def test_a_rank_that_asks_for_a_malformed_collective_ends_alone() -> None:
    source = """
        if rank == 1:
            group = dist.distributed_c10d._get_default_group()
            group.endpoint._ask(
                "post", 99, ("collective", "0", "all_to_all", "", [x], "", -1, (1, 9), (), float("inf")), None
            )
        dist.barrier()
    """
    result = run(source, ranks=2, kind="processes")
    assert errors(result) == ["PeerFailed", "ProtocolError"]
    assert "the scheduler ended this rank: malformed all_to_all" in result.ranks[1].error.message  # type: ignore[union-attr]
