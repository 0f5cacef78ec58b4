"""A failed rank fails what depends on it, and nothing else, whenever and however others ask."""

from __future__ import annotations

from textwrap import dedent

import pytest
from waiting import BROKEN_SECONDS

from labkit import Job, virtual

HEAD = """\
import torch, torch.distributed as dist
dist.init_process_group()
rank, n = dist.get_rank(), dist.get_world_size()
x = torch.ones(2)
endpoint = dist.distributed_c10d._get_default_group().endpoint
def pause(seconds): endpoint.sleep(seconds)
def work(seconds): endpoint.compute(seconds)
"""


def outcomes(source: str, ranks: int = 2, how: str = "threads") -> list[object]:
    """Return each rank's value, or the kind of its error."""
    job = Job(source=HEAD + dedent(source).strip(), timeout=BROKEN_SECONDS)
    run = virtual(nproc_per_node=ranks, ranks=how).run(job)  # type: ignore[arg-type]
    return [rank.error.type if rank.error else rank.value for rank in run.ranks]


@pytest.mark.parametrize(
    "call", ["dist.isend(x, 1)", "dist.irecv(x, 1)", "dist.irecv(x)", "dist.barrier(async_op=True)"]
)
@pytest.mark.parametrize(
    "later", ["work.wait()", "pause(1.0)\n    work.wait()", "while not work.is_completed(): pass\n    work.wait()"]
)
def test_what_was_asked_before_the_failure_fails(call: str, later: str) -> None:
    source = f"if rank == 0:\n    work = {call}\n    {later}\nelse:\n    pause(1e-4)\n    raise ValueError"
    assert outcomes(source) == ["PeerFailed", "ValueError"]


@pytest.mark.parametrize("call", ["dist.send(x, 1)", "dist.recv(x, 1)", "dist.recv(x)", "dist.barrier()"])
def test_what_is_asked_after_the_failure_fails(call: str) -> None:
    assert outcomes(f"if rank == 0:\n    pause(1.0)\n    {call}\nelse:\n    raise ValueError") == [
        "PeerFailed",
        "ValueError",
    ]


@pytest.mark.parametrize("how", ["threads", "processes"])
@pytest.mark.parametrize(
    ("theirs", "ours", "outcome"),
    [
        ("dist.isend(x, 0)", "dist.recv(x, 1)", "arrived"),
        ("dist.isend(x, 0)", "dist.recv(x)", "arrived"),
        ("dist.irecv(x, 0)", "dist.send(x, 1)", "PeerFailed"),
        ("dist.all_reduce(x, async_op=True)", "dist.all_reduce(x)", "PeerFailed"),
    ],
)
def test_what_the_failed_rank_sent_arrives_and_what_it_awaited_is_gone(
    theirs: str, ours: str, outcome: str, how: str
) -> None:
    for later in ("pause(1.0)", "work(1.0)"):
        source = f"if rank == 0:\n    {later}\n    {ours}\nelse:\n    {theirs}\n    raise ValueError\n'arrived'"
        assert outcomes(source, how=how) == [outcome, "ValueError"], later


def test_who_receives_from_anybody_goes_on_while_anybody_is_left() -> None:
    source = """
        if rank == 0:
            source = dist.recv(x)
        elif rank == 1:
            raise ValueError
        else:
            pause(1.0)
            dist.send(x, 0)
        source if rank == 0 else None
        """
    assert outcomes(source, 3) == [2, "ValueError", None]


def test_nobody_joins_a_collective_that_differs_between_two() -> None:
    source = "pause(float(rank))\ndist.broadcast(x, 0) if rank == 1 else dist.all_reduce(x)\n'done'"
    assert outcomes(source, 3) == ["MismatchError"] * 3
