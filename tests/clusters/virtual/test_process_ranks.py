"""Process ranks: their messages to the scheduler, and the process that they are forked from."""

from __future__ import annotations

import multiprocessing
import select
import socket
import struct
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from typing import Literal

import pytest
import torch
from waiting import BROKEN_SECONDS, wait_until

from labkit import Job, virtual
from labkit.clusters.virtual.endpoints.protocol import ByteQuota, Connection, ProtocolError
from labkit.clusters.virtual.endpoints.remote_endpoint import SocketEndpoint
from labkit.clusters.virtual.hosts import prefork_warmup, remote
from labkit.clusters.virtual.scheduler.engine import Engine
from labkit.clusters.virtual.scheduler.errors import SchedulerFailed
from labkit.clusters.virtual.scheduler.requests import Receive, Send
from labkit.hardware import topology

MESSAGE = ["post", 1, ("send", None, 2.5, float("inf"), b"abc", b""), [torch.arange(6).view(2, 3), torch.zeros(0, 3)]]


def lines() -> tuple[socket.socket, Connection]:
    ours, theirs = socket.socketpair()
    return ours, Connection(theirs)


def test_a_message_arrives_as_it_was_sent_with_lists_for_tuples() -> None:
    ours, line = lines()
    Connection(ours).send(MESSAGE)
    *plain, tensors = line.receive()
    assert plain == ["post", 1, ["send", None, 2.5, float("inf"), b"abc", b""]]
    assert torch.equal(tensors[0], torch.arange(6).view(2, 3)) and tensors[1].shape == (0, 3)
    ours.shutdown(socket.SHUT_WR)
    assert line.receive() is None


@pytest.mark.parametrize(
    "text",
    [
        b"[",
        b"[" * 100_000,
        b"\xff",
        b'{"bytes": [99]}',
        b'{"bytes": [-1]}',
        b'{"tensor": [4, "torch.float32", [2]]}',
        b'{"tensor": [4, "torch.load", [1]]}',
        b'{"tensor": [0, "torch.float32", [0, 99999999999999999999]]}',
        b'{"else": 1}',
    ],
)
def test_what_is_no_message_is_refused(text: bytes) -> None:
    ours, line = lines()
    ours.sendall(struct.pack("<IQ", len(text), 4) + text + bytes(4))
    with pytest.raises(ProtocolError):
        line.receive()


def test_sizes_are_refused_before_anything_is_read() -> None:
    for text, buffers, quota in ((1 << 30, 0, None), (2, 1 << 40, None), (2, 1000, ByteQuota(100).for_rank(0))):
        ours, theirs = socket.socketpair()
        ours.sendall(struct.pack("<IQ", text, buffers))
        with pytest.raises(ProtocolError):
            Connection(theirs, quota).receive()


def test_a_thread_that_calls_back_does_not_write_into_the_message_of_another() -> None:
    ours, line = lines()
    endpoint = SocketEndpoint(0, Connection(ours))
    send = Send("", "isend", "", 1, 0, torch.uint8, 8 << 20, 8 << 20, bytes(8 << 20))
    with ThreadPoolExecutor(2) as threads:
        posted = threads.submit(endpoint.post, send)
        wait_until(lambda: not select.select([], [ours], [], 0)[1])  # no more goes in, and nobody reads
        called = threads.submit(endpoint.call_back)
        assert wait([called], timeout=0.2).not_done
        said = [line.receive()[0] for _ in range(2)]
        posted.result()
        called.result()
    assert [call[0] for call in said] == ["post", "call_back"]


def rehearsed() -> bool:
    remote.prepare_forks()
    return prefork_warmup.warm_up()


def test_the_rehearsal_goes_well() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        assert process.submit(rehearsed).result()


def test_what_was_asked_before_the_end_has_been_asked() -> None:
    source = """
import torch, torch.distributed as dist
dist.init_process_group()
x = torch.full((4,), 7.0)
works = [dist.isend(x, 1, tag=i) for i in range(200)] if dist.get_rank() == 0 else []
for i in range(200 if dist.get_rank() == 1 else 0):
    dist.recv(x.zero_(), 0, tag=i)
x.tolist()"""
    run = virtual(nproc_per_node=2, ranks="processes").run(Job(source=source)).raise_if_failed()
    assert run.values == [[7.0] * 4] * 2
    assert run.trace.messages_sent(0) == 200


def test_no_rank_is_told_of_the_rehearsal() -> None:
    source = """
import sys, torch, torch.distributed as dist
hook = sys.excepthook
dist.init_process_group()
dist.all_reduce(torch.ones(1))
print(hook is sys.__excepthook__)
dist.get_rank(), torch.distributed.group.WORLD.group_name, torch.initial_seed() % 1000"""
    by_processes = virtual(nproc_per_node=2, ranks="processes").run(Job(source=source)).raise_if_failed()
    by_threads = virtual(nproc_per_node=2).run(Job(source=source)).raise_if_failed()
    assert by_processes.values == by_threads.values
    assert [rank.output for rank in by_processes.ranks] == ["True\n"] * 2
    assert by_processes.trace.groups == by_threads.trace.groups
    assert by_processes.trace.ranks_per_machine == by_threads.trace.ranks_per_machine == 2


@pytest.mark.parametrize("ranks", ["threads", "processes"])
def test_the_scheduler_records_process_groups(
    ranks: Literal["threads", "processes"],
) -> None:
    source = """
import time, torch, torch.distributed as dist
for backend in ("nccl", "gloo"):
    dist.init_process_group(backend)
    pair = dist.new_group([0, 1], backend="nccl")
    time.sleep(1.0)
    if dist.get_rank() == 0 and backend == "nccl":
        dist.destroy_process_group(pair)
    time.sleep(1.0)
    if backend == "nccl":
        dist.destroy_process_group()"""
    trace = virtual(nproc_per_node=3, ranks=ranks).run(Job(source=source)).raise_if_failed().trace
    assert [(m.backend, m.left is not None) for m in trace.memberships_of(2)] == [("nccl", True), ("gloo", False)]
    first, pair, *again = trace.memberships_of(0)
    assert [trace.groups[m.group] for m in (first, pair, *again)] == [(0, 1, 2), (0, 1)] * 2
    assert first.left is not None and pair.left is not None
    assert 1.0 <= pair.left < 2.0 <= first.left <= again[0].joined
    assert [(m.backend, m.left) for m in again] == [("gloo", None), ("nccl", None)]


def test_a_group_that_was_destroyed_is_of_no_use() -> None:
    source = """
import torch, torch.distributed as dist
dist.init_process_group()
group = dist.distributed_c10d._get_default_group()
dist.destroy_process_group()
group.allreduce([torch.ones(1)]).wait()"""
    run = virtual(nproc_per_node=2, ranks="processes").run(Job(source=source))
    assert {rank.error.type for rank in run.ranks if rank.error} == {"ProtocolError"}
    assert "or has destroyed it" in run.diagnosis()


def test_an_error_of_the_scheduler_ends_the_run_and_is_nobodys_on_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("labkit.clusters.virtual.scheduler.network.Network.connection", fails)
    source = """
import torch, torch.distributed as dist
dist.init_process_group()
x, rank = torch.ones(2), dist.get_rank()
work = dist.isend(x, 1) if rank == 0 else None
if rank == 1:
    dist.recv(x, 0)
elif rank == 2:
    while not (waiting := dist.irecv(x, 3)).is_completed():
        pass
    waiting.wait()
dist.barrier()"""
    run = virtual(nproc_per_node=4, ranks="processes").run(Job(source=source, timeout=BROKEN_SECONDS))
    assert run.stopped.startswith("the lab's scheduler failed: ZeroDivisionError in test_process_ranks.py, line ")
    errors = [rank.error for rank in run.ranks if rank.error is not None]
    assert [error.type for error in errors] == ["SchedulerFailed"] * 4
    assert all("no fault of this program" in error.message for error in errors)
    monkeypatch.undo()
    assert virtual(nproc_per_node=2, ranks="processes").run(Job(source="1")).values == [1, 1]


def test_what_is_on_the_agenda_may_fail_and_the_scheduler_goes_on() -> None:
    engine = Engine(topology(nproc_per_node=2))
    engine.groups.members["all"] = (0, 1)

    def fails(time: float, subject: object) -> None:
        raise OverflowError

    assert engine.next_rank() == 0
    request = engine.post(0, Receive("all", "recv", "", 1, 0, torch.float32, 3))
    engine._agenda.at(0.0, fails, None)
    assert engine.must_sleep(0, request)
    # the other rank, then the one whose wait has ended
    assert [engine.next_rank(), engine.next_rank(), engine.next_rank()] == [1, 0, None]
    with pytest.raises(SchedulerFailed, match="OverflowError in test_process_ranks"):
        engine.waiting.finish(0, request)
