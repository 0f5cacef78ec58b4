"""What a rank of a judged call cannot know, cannot report, and cannot change afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from waiting import BROKEN_SECONDS

from autograder.measurable import unmeasurable
from autograder.sandbox import Sandbox
from autograder.submission_sandbox import SubmissionSandbox
from labkit.catalogue import Exercise
from labkit.checks import Alteration, Args, NotMeasurable, Ranks, Reference, Submission
from labkit.clusters import Job, Run
from labkit.clusters.arguments import transposed, work
from labkit.clusters.local import local
from labkit.clusters.virtual import virtual
from labkit.trace import Kind

NAME = "phase1_small/tried"
HEAD = "import torch\nimport torch.distributed as dist\n\n\ndef tried(tensor, *more):\n"


def run(body: str, *inputs: Args, on: str = "virtual", trusting: bool = False, **options: Any) -> Run:
    """Run `tried` on as many process ranks as there are inputs."""
    source = HEAD + "".join(f"    {line}\n" for line in body.splitlines())
    arguments = tuple((given.args, given.kwargs) for given in inputs)
    job = Job(call=(NAME, "tried"), arguments=arguments, modules={NAME: source}, timeout=BROKEN_SECONDS)
    if on == "local":
        return local(len(inputs)).run(job)
    more = {"ranks": "processes", "trusting": trusting, "account": False, **options}
    return virtual(nnodes=len(inputs), nproc_per_node=1, **more).run(job)


def per_rank(count: int) -> Sequence[Args]:
    return [Args(torch.full((3,), float(rank + 1))) for rank in range(count)]


LOOKS_AROUND = """import gc, sys
found, frame = set(), sys._getframe()
while frame is not None:
    job = frame.f_locals.get("job")
    found |= {float(g[0][0][0]) for g in getattr(job, "arguments", ()) if g}
    frame = frame.f_back
found |= {float(x[0]) for x in gc.get_objects() if type(x) is torch.Tensor and x.shape == (3,)}
return sorted(found)"""


@pytest.mark.parametrize("on", ["virtual", "local"])
def test_a_rank_finds_its_own_arguments_and_no_others(on: str) -> None:
    found = run(LOOKS_AROUND, *per_rank(3), on=on).raise_if_failed()
    assert found.values == [[1.0], [2.0], [3.0]]


@pytest.mark.parametrize("on", ["virtual", "local"])
def test_what_lies_in_the_arguments_is_read_and_not_told(on: str) -> None:
    given = [Args(torch.zeros(3), transposed(torch.arange(6.0).view(2, 3)), [1]) for _ in range(2)]
    # in place, another object returned
    found = run("tensor += 1\nmore[0].mul_(2)\nmore[1].append(2)\nreturn tensor.clone()", *given, on=on)
    for result in found.raise_if_failed().ranks:
        assert result.returned_argument is None and torch.equal(result.value, torch.ones(3))
        there, strided, plain = result.arguments
        assert torch.equal(there, torch.ones(3)) and plain == [1, 2]
        assert torch.equal(strided, 2 * torch.arange(6.0).view(2, 3).t()) and not strided.is_contiguous()
    assert torch.equal(given[0].args[0], torch.zeros(3))
    # a lying rank: it claims that it returns its argument, and that the argument is correct
    liar = """from dataclasses import replace
from labkit.clusters import argument_transfer, program
made = program.RankResult
def lie(rank, **said):
    return made(rank, value=torch.ones(3), arguments=(torch.ones(3),), returned_argument=0)
program.RankResult = lie
argument_transfer.without_tensors = lambda result: result
return None"""
    found = run(liar, Args(torch.zeros(3)), on=on).raise_if_failed()
    assert torch.equal(found.values[0], torch.zeros(3)) and torch.equal(found.ranks[0].arguments[0], torch.zeros(3))


def test_computing_is_charged_by_what_is_declared() -> None:
    forward = work("forward", 0.25)
    body = "for _ in range(10): tensor = tensor @ tensor\nmore[0]()\nmore[0]()\nreturn None"
    found = run(body, Args(torch.ones(200, 200), forward), Args(torch.ones(200, 200), forward)).raise_if_failed()
    assert found.trace.seconds == pytest.approx(0.5)
    assert [(e.rank, e.operation) for e in found.trace.of(kind=Kind.COMPUTE)] == [(r, "forward") for r in (0, 1)] * 2


def test_a_rank_has_no_say_in_its_clock() -> None:
    tell_lies = """from labkit.clusters.virtual.isolation.current import here
endpoint = here.endpoint
endpoint.now = 1e-9
endpoint._say("compute", 0.0, 1)
endpoint._say("compute", 1e9, 1)
say, rank = endpoint._say, dist.get_rank()
def early(name, *rest):
    if name == "post":
        return say(name, *rest[:2], 0.0)
    return say(name, rest[0], False, rest[2]) if name == "wait" else say(name, *rest)
endpoint._say = early
"""
    in_turn = """for step in range(4):
    if step == rank:
        dist.send(tensor, (rank + 1) % 4)
    elif (rank - 1) % 4 == step:
        dist.recv(tensor, step)"""
    honest = run("rank = dist.get_rank()\n" + in_turn, *[Args(torch.ones(1 << 16)) for _ in range(4)])
    lying = run(tell_lies + in_turn, *[Args(torch.ones(1 << 16)) for _ in range(4)])
    assert lying.raise_if_failed().trace.seconds == pytest.approx(honest.raise_if_failed().trace.seconds)
    refused = run("from labkit.clusters.virtual.isolation.current import here\nhere.endpoint.work('rest', 0.0)",
                  Args(torch.ones(1), work("forward", 0.25)))  # fmt: skip
    assert refused.ranks[0].error is not None


@pytest.mark.parametrize("numel, times", [(1 << 18, 8), (0, 5000)])
def test_what_a_rank_sends_is_bounded(numel: int, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.clusters.virtual.hosts.scheduler_server.MAX_RUN_BYTES_OF_ANYBODY", 4 << 20)
    flood = f"for _ in range({times}): dist.isend(torch.ones({numel}), 1)"  # which nobody receives
    found = run(f"if dist.get_rank() == 0:\n    {flood}\nreturn 1", *per_rank(2))
    assert found.ranks[0].error is not None and found.values[1] == 1
    assert found.ranks[0].error.type == "ProtocolError" and "all ranks of a run" in found.ranks[0].error.message


def test_who_used_up_what_all_may_send_is_blamed_and_not_who_comes_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.clusters.virtual.hosts.scheduler_server.MAX_RUN_BYTES_OF_ANYBODY", 4 << 20)
    body = """if dist.get_rank() == 0:
    kept = [dist.isend(torch.ones(300_000), 1) for _ in range(3)]  # which nobody receives
    dist.send(tensor, 1, tag=1)
else:
    dist.recv(tensor, 0, tag=1)
    dist.isend(torch.ones(200_000), 0)
    dist.barrier()
return 1"""
    found = run(body, *per_rank(2))
    first = found.first_failure
    assert first is not None and first.rank == 0 and first.error is not None
    assert first.error.type == "ProtocolError" and "it sent 3" in first.error.message
    other = found.ranks[1].error
    assert other is not None and other.consequence and "rank 0 has used up" in other.message


def test_a_message_that_is_altered_shows_in_what_is_made_of_it_and_nowhere_else() -> None:
    honest = "dist.send(tensor, 1) if dist.get_rank() == 0 else dist.recv(tensor, 0)\nreturn tensor + 0"
    fake = "dist.send(tensor, 1) if dist.get_rank() == 0 else dist.recv(tensor + 0, 0)\nreturn tensor * 0 + 1"
    for body, arrived in ((honest, 2.0), (fake, 1.0)):
        found = run(body, *per_rank(2), alteration=Alteration(0)).raise_if_failed()
        assert found.values[0].tolist() == [1.0] * 3  # the sender's own is unchanged
        assert found.values[1].tolist() == [arrived] * 3
    other = run(honest, *per_rank(2), alteration=Alteration(0, torch.float64)).raise_if_failed()
    assert other.values[1].tolist() == [1.0] * 3


@pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")
def test_real_processes_move_what_the_kernel_counts() -> None:
    pairs = """other = torch.empty_like(tensor)
rank = dist.get_rank()
work = dist.isend(tensor, 1 - rank)
dist.recv(other, 1 - rank)
work.wait()
tensor += other
return tensor"""
    knows = "return tensor.fill_(3)"
    submission_sandbox = SubmissionSandbox(Sandbox())
    ranks = Ranks(processes=submission_sandbox.processes, network_bytes=submission_sandbox.network_bytes)
    inputs = [torch.full((500_000,), float(rank + 1)) for rank in range(2)]
    for body, nbytes in ((pairs, 4_000_000), (knows, 0)):
        source = HEAD + "".join(f"    {line}\n" for line in body.splitlines())
        counted = []
        for _ in range(3):  # on a busy machine TCP retransmits more: the least counts
            found = ranks.processes(2).call(Reference(Submission(Exercise(NAME), source), "tried"), inputs)
            assert [value[0].item() for value in found.values] == [3.0, 3.0]
            counted.append(found.bytes_on_the_wire)
            assert counted[-1] >= nbytes
        assert min(counted) <= 1.1 * nbytes + 20_000
    submission_sandbox.close()


@pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")
def test_memory_is_the_kernels_figure_of_the_run_that_returns_the_values() -> None:
    # tensors of a quarter of a megabyte: freed ones are no longer counted; held for a while, since memory is sampled
    # now and then where there are no control groups
    body = """import time
for _ in range(4):
    held = [torch.full((65_536,), float(tensor)) for _ in range(200)]
    del held
held = [torch.full((65_536,), float(tensor)) for _ in range(200)]
time.sleep(0.5)
return held[-1][0]"""
    source = HEAD + "".join(f"    {line}\n" for line in body.splitlines())
    if reason := unmeasurable(Sandbox()).get("memory"):
        pytest.skip(reason)
    submission_sandbox = SubmissionSandbox(Sandbox())
    ranks = Ranks(
        submission_sandbox.virtual,
        processes=submission_sandbox.processes,
        memory_beyond=submission_sandbox.memory_beyond,
    )
    tried = Reference(Submission(Exercise(NAME), source), "tried")
    # real processes are new ones for each call, and what a first step takes is left out though this takes none
    with contextlib.closing(submission_sandbox):
        for two, least in ((ranks(2), 95e6), (ranks.processes(2), 60e6)):
            found, nbytes = two.measured(tried, [torch.ones(1), torch.full((1,), 2.0)])
            assert [value.item() for value in found.values] == [1.0, 2.0]
            assert least < nbytes < 145e6


@pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")
def test_what_torch_takes_at_its_first_step_is_not_the_submissions_memory() -> None:
    """It is up to 16 MB a rank, depending on the processor, and would count as activations that are kept."""
    body = """net = torch.nn.Sequential(torch.nn.Linear(5, 9000), torch.nn.Tanh(), torch.nn.Linear(9000, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
torch.nn.functional.cross_entropy(net(torch.ones(8, 5)), torch.zeros(8, dtype=torch.long)).backward()
optimizer.step()
return tensor"""
    source = HEAD + "".join(f"    {line}\n" for line in body.splitlines())
    submission_sandbox = SubmissionSandbox(Sandbox())
    ranks = Ranks(submission_sandbox.virtual, memory_beyond=submission_sandbox.memory_beyond)
    tried = Reference(Submission(Exercise(NAME), source), "tried")
    _, nbytes = ranks(2).measured(tried, [torch.ones(1)] * 2)
    assert nbytes < 2 * 9e6
    submission_sandbox.close()


def test_without_a_network_of_ones_own_bytes_are_not_measured() -> None:
    source = HEAD + "    return tensor\n"
    found = Ranks().processes(2).call(Reference(Submission(Exercise(NAME), source), "tried"), [torch.ones(2)] * 2)
    assert found.values[1].tolist() == [1.0, 1.0]
    with pytest.raises(NotMeasurable, match="only in grading"):
        found.bytes_on_the_wire  # noqa: B018


def test_the_store_is_no_way_around_messages() -> None:
    keeps = "from torch.distributed import distributed_c10d\nstore = distributed_c10d._get_default_store()\n"
    for writes in ("set('k', b'x')", "add('k', 1)", "queue_push('k', b'')", "compare_set('k', b'', b'')"):
        found = run(f"{keeps}store.{writes}", *per_rank(2))
        assert all(rank.error is not None and "send messages" in rank.error.message for rank in found.ranks), writes
    # the library's own uses need none of that
    groups = """pair = dist.new_group([0, 1], use_local_synchronization=True)
dist.monitored_barrier()
dist.all_gather_object(found := [None, None], dist.get_rank(), group=pair)
dist.destroy_process_group()
dist.init_process_group()
return found, dist.distributed_c10d._get_default_store().check(["k"])"""
    assert run(groups, *per_rank(2)).raise_if_failed().values == [([0, 1], False)] * 2


REPEATS = """from torch.distributed import distributed_c10d
store = distributed_c10d._get_default_store()
store.set("k", bytes(800))
store.multi_get(["k"] * 100_000)"""
"""Eighty megabytes for a request of half a megabyte."""


def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.clusters.virtual.endpoints.protocol.MAX_MESSAGE_BYTES", 16 << 20)
    found = run(REPEATS, *per_rank(1), trusting=True)
    assert found.ranks[0].error is not None


LEAVES_MUCH_BEHIND = """if dist.get_rank() == 0:
    nothing = torch.empty(0)
    for tag in range(30_000):
        dist.irecv(nothing, 1, tag=tag)
    raise ValueError
return 1"""


def test_a_rank_that_leaves_much_behind_delays_nobody() -> None:
    found = run(LEAVES_MUCH_BEHIND, *per_rank(2))
    assert not found.stopped and found.values[1] == 1
    assert found.ranks[0].error is not None and found.ranks[0].error.type == "ValueError"


def test_a_group_has_each_rank_once() -> None:
    asks = "from labkit.clusters.virtual.isolation.current import here\n"
    asks += "here.endpoint._ask('join_group', 'mine', [0, 0], 'gloo')"
    assert run(asks, *per_rank(1)).ranks[0].error is not None


def test_many_small_things_count_for_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.clusters.virtual.hosts.scheduler_server.MAX_RUN_BYTES_OF_ANYBODY", 4 << 20)
    keeps = "from torch.distributed import distributed_c10d\nstore = distributed_c10d._get_default_store()\n"
    assert run(keeps + "return store.check(['k'] * 1000)", *per_rank(1)).raise_if_failed().values == [False]
    assert run(keeps + "return store.check(['k'] * 10_000)", *per_rank(1)).ranks[0].error is not None


def test_errors_carry_nothing_from_rank_to_rank_and_are_known_to_the_judge() -> None:
    body = """from labkit.clusters.virtual.isolation.current import here
from labkit.clusters.virtual.scheduler.requests import Receive, Send
if dist.get_rank() == 0:
    handle = here.endpoint.post(Send("0", "send", "my tensor is 1", 1, 0, torch.int8, 3, 3, bytes(3)))
else:
    handle = here.endpoint.post(Receive("0", "recv", "", 0, 0, torch.int8, 2))
try:
    here.endpoint.wait(handle)
except RuntimeError as error:
    more[0].copy_(torch.tensor(["tensor is 1" in str(error) or "3 x" in str(error), len(str(error)) > 0]))
    raise"""
    found = run(body, *[Args(torch.ones(1), torch.zeros(2)) for _ in range(2)])
    assert [rank.arguments[1].tolist() for rank in found.ranks] == [[0.0, 1.0]] * 2
    errors = [rank.error for rank in found.ranks if rank.error is not None]
    assert [error.type for error in errors] == ["MismatchError"] * 2
    assert all("my tensor is 1" in error.message for error in errors)


def test_who_learns_something_by_a_mismatch_has_failed_whatever_it_returns() -> None:
    body = """rank = dist.get_rank()
try:
    work = dist.isend(torch.ones(3 - rank), 1) if rank == 0 else dist.irecv(torch.ones(2), 0)
    dist.barrier()
    rank == 0 or work.is_completed() or work.wait()
except RuntimeError:
    pass
return 1"""
    found = run(body, *per_rank(2))
    assert [rank.error.type for rank in found.ranks if rank.error is not None] == ["MismatchError"] * 2
    assert run(body, *per_rank(2), trusting=True).raise_if_failed().values == [1, 1]
    asks = "from labkit.clusters.virtual.isolation.current import here\n"
    asks += "for i in range(300): here.endpoint.join_group(f'mine {i}', (0,), 'gloo')"
    refused = run(asks, *per_rank(1)).ranks[0].error
    assert refused is not None and "more than 200 groups" in refused.message
