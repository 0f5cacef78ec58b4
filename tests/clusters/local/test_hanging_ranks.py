"""Real ranks that wait in vain are reported, with who is missing; slow or quiet ranks are not."""

from __future__ import annotations

import signal

import pytest
from clocks import LateClock

from labkit import Job, Run, local
from labkit.clusters import State
from labkit.clusters.forkserver import shared

HEAD = """\
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
x = torch.ones(4)
"""


def run(source: str, ranks: int = 3, head: str = HEAD, **options: object) -> Run:
    given = {"hang_timeout": 1.0, "timeout": 60, "filename": "Cell In[3]", **options}
    return local(nproc_per_node=ranks).run(Job(source=head + source, **given))  # type: ignore[arg-type]


def told(source: str, ranks: int = 3, head: str = HEAD) -> list[str]:
    found = run(source, ranks, head)
    assert found.stopped == "hang: no output and no progress for 1 s", found.diagnosis()
    return found.diagnosis().splitlines()


def test_a_rank_that_sleeps_while_others_are_in_a_barrier() -> None:
    assert told("if rank == 1:\n    time.sleep(60)\ndist.barrier()") == [
        "stopped: hang: no output and no progress for 1 s",
        "[0, 2]  Cell In[3], line 7: dist.barrier()  waits in barrier #1 of the group 0-2",
        "[1]     Cell In[3], line 6: time.sleep(60)  in no operation",
        "barrier #1 of the group 0-2: ranks 0, 2 wait in it at line 7, "
        "rank 1 is missing: it is at line 6: time.sleep(60)",
        "try: find out why rank 1 does not get past Cell In[3], line 6",
    ]


def test_mismatched_collectives() -> None:
    lines = told("dist.all_reduce(x)\nif rank == 2:\n    dist.barrier()\nelse:\n    dist.all_reduce(x)")
    assert lines[1] == "[0-1]  Cell In[3], line 9: dist.all_reduce(x)  waits in all_reduce #2 of the group 0-2, 16 B"
    assert lines[3] == (
        "call #2 of the group 0-2 differs: ranks 0-1 wait in all_reduce at line 9, rank 2 waits in barrier at line 7"
    )


def test_a_receive_without_its_send() -> None:
    lines = told("if rank == 1:\n    dist.recv(x, 0)\ndist.barrier()")
    assert "[1]     Cell In[3], line 6: dist.recv(x, 0)  waits in recv from rank 0, 16 B" in lines
    assert lines[-1] == "try: every receive needs a send: rank 0 must call send(..., dst=1)"


def test_a_circle_of_sends() -> None:
    lines = told("dist.send(x, (rank + 1) % n)\ndist.recv(x, (rank - 1) % n)")
    assert lines[-2] == "cycle: 0 → 1 → 2 → 0"
    assert "let one side receive first, or post the send with isend" in lines[-1]


def test_a_rank_that_ended_while_its_group_lives() -> None:
    # its process stays, with a thread that sleeps, and so do its connections
    lines = told("import threading\nif rank == 1:\n    threading.Thread(target=time.sleep, args=(60,)).start()\n"
                 "else:\n    dist.barrier()")  # fmt: skip
    assert "[1]     has ended" in lines
    assert any("rank 1 is missing: it has ended" in line for line in lines)
    assert lines[-1].startswith("try: every rank of a group must make all of its calls")


def test_a_hang_in_the_backward_pass_is_in_its_all_reduce() -> None:
    lines = told(
        "from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(torch.nn.Linear(4, 4))\n"
        "if rank == 1:\n    sys.stdin = None\n    import queue; queue.Queue().get()\nmodel(x).sum().backward()"
    )
    assert lines[1].startswith("[0, 2]  Cell In[3], line 10: model(x).sum().backward()")
    assert "waits in all_reduce #" in lines[1]
    assert "rank 1 is missing: it is at line 9" in lines[3]


def test_a_rank_that_never_comes_to_init_process_group() -> None:
    head = "import os, time, torch.distributed as dist\n"
    lines = told("if os.environ['RANK'] == '1':\n    time.sleep(60)\ndist.init_process_group('gloo')", head=head)
    assert "ranks 0, 2 wait in init_process_group at line 4, rank 1 is missing: it is at line 3: time.sleep(60)" in (
        lines
    )


@pytest.mark.parametrize(
    "busy",
    [
        "until = time.time() + 2.5\n    while time.time() < until:\n        x @ x",
        "for i in range(5):\n        time.sleep(0.5); print(i)",
        "if os.fork() == 0:\n        while time.process_time() < 2: pass\n        os._exit(0)\n    os.wait()",
        "for i in range(5):\n        time.sleep(0.5); open('/dev/zero', 'rb').read(1 << 20)",
    ],
    ids=["computes", "prints", "has a child that computes", "reads"],
)
def test_a_rank_that_does_something_is_no_hang(busy: str) -> None:
    assert run(f"if rank == 1:\n    {busy}\ndist.barrier()\n'done'").raise_if_failed().values == ["done"] * 3


def test_ranks_that_are_all_only_quiet_are_no_hang() -> None:
    assert run("time.sleep(2.5)\n'done'", 2).raise_if_failed().values == ["done"] * 2


def test_a_hang_may_be_waited_for() -> None:
    states: list[State] = []
    source = HEAD + "if rank == 1:\n    time.sleep(2.5)\ndist.barrier()\n'done'"
    job = Job(source=source, filename="Cell In[3]", hang_timeout=1.0, on_hang="wait", timeout=60)
    found = local(nproc_per_node=2).run(job, on_state=states.append)
    assert found.raise_if_failed().values == ["done"] * 2
    hanging = [state for state in states if state.phase == "hanging"]
    assert len(hanging) == 1, "it is told once"
    assert "rank 1 is missing: it is at line 6: time.sleep(2.5)" in hanging[0].text
    assert states[-1].phase == "running"


def test_a_hang_may_be_of_no_interest() -> None:
    assert run("if rank == 1:\n    time.sleep(2.5)\ndist.barrier()\n'done'", hang_timeout=None).ok


def test_a_time_out_and_an_interrupt_tell_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "if rank == 1:\n    time.sleep(60)\nprint('here')\ndist.barrier()"
    job = Job(source=HEAD + source, filename="Cell In[3]", hang_timeout=None, timeout=2)
    heard: list[int] = []
    clock = LateClock()
    monkeypatch.setattr(shared(), "clock", clock)

    def on_output(rank: int, stream: str, text: str) -> None:
        heard.append(rank)
        if len(heard) == 2:
            clock.start()

    found = local(nproc_per_node=3).run(job, on_output)
    assert found.stopped == "timeout after 2 s"
    assert "[0, 2]  Cell In[3], line 8: dist.barrier()  waits in barrier #1 of the group 0-2" in found.diagnosis()

    def interrupt(state: State) -> None:
        if state.phase == "hanging":
            signal.raise_signal(signal.SIGINT)

    job = Job(source=HEAD + source, filename="Cell In[3]", hang_timeout=0.5, on_hang="wait")
    with pytest.raises(KeyboardInterrupt) as raised:
        local(nproc_per_node=3).run(job, on_state=interrupt)
    assert raised.value.__notes__[:2] == [
        "[0, 2]  Cell In[3], line 8: dist.barrier()  waits in barrier #1 of the group 0-2",
        "[1]     Cell In[3], line 6: time.sleep(60)  in no operation",
    ]
