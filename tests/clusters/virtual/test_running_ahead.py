"""Ranks on fake tensors that run ahead in several processes: the same run, to the bit, as ranks that are threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clocks import LateClock
from random_programs import generate, source
from waiting import BROKEN_SECONDS

from labkit import InvalidJob, Job, Run, virtual
from labkit.clusters.forkserver.client import shared
from labkit.clusters.virtual.hosts.recording_worker import QUESTIONS

RANKS = 6
HEAD = """
import gc, os, sys, threading, time, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
x = torch.ones(1 << 14)
"""
END = "\nos.getpid()\n"
AHEAD = {
    "collectives": """
dist.all_reduce(x)
outputs = [torch.empty(1 << 14) for _ in range(n)]
dist.all_gather(outputs, x)
dist.reduce(x, 2)
dist.broadcast(x, 1)
dist.scatter(x, outputs if rank == 4 else None, src=4)
dist.gather(x, outputs if rank == 0 else None, dst=0)
dist.all_to_all_single(torch.empty(6 << 10), torch.ones(6 << 10))
dist.reduce_scatter_single(torch.empty(1 << 10), torch.ones(6 << 10))
""",
    "messages": """
for step in range(5):
    work = dist.isend(x, (rank + 1) % n)
    dist.recv(torch.empty(1 << 14), (rank - 1) % n)
    torch.ones(256 * (rank + 1), 256) @ torch.ones(256, 256)
    work.wait()
if rank:
    dist.send(x, 0)
else:
    print([dist.recv(x) for _ in range(n - 1)])
""",
    "DDP": """
torch.manual_seed(rank)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    model(torch.randn(8, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step)
""",
    "FSDP2": """
from labkit.models import GPT, GPTConfig
from torch.distributed.fsdp import fully_shard
config = GPTConfig(2, 2, 48, 64, 16)
mesh = dist.device_mesh.init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("data", "shard"))
model = GPT(config)
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    tokens = torch.randint(config.vocab, (2, config.context))
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
""",
    "tensor parallelism": """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = dist.device_mesh.init_device_mesh("cpu", (3, 2), mesh_dim_names=("data", "tensor"))
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
model(torch.randn(4, 64)).sum().backward()
for parameter in model.parameters():
    dist.all_reduce(parameter.grad.to_local(), group=mesh["data"].get_group())
""",
    "streams": """
side = torch.cpu.Stream()
for step in range(3):
    with torch.cpu.stream(side):
        dist.all_reduce(x)
    event = torch.cpu.Event()
    event.record(side)
    torch.ones(512, 512) @ torch.ones(512, 512 * (rank + 1))
    torch.cpu.current_stream().wait_stream(side)
print(event.query(), side.query(), torch.cpu.Event().elapsed_time(event))
""",
    "the clock": """
began = time.perf_counter()
dist.all_reduce(x)
time.sleep(0.1 * rank)
print(time.perf_counter() - began)
""",
    "known values": """
counts = torch.tensor([rank, 1])
dist.all_reduce(counts)
print(counts.tolist())
everybody = [None] * n
dist.all_gather_object(everybody, {"rank": rank})
print(everybody)
number = torch.tensor([rank])
if rank < 2:
    dist.send(number, 1) if rank == 0 else dist.recv(number, 0)
print(number.item())
""",
    "a store": """
store = dist.TCPStore("localhost", 29511, n, rank == 0)
store.set(f"key {rank}", "value")
print(store.get(f"key {(rank + 1) % n}"), store.multi_get(["key 0", "key 1"]), store.add("sum", rank))
dist.barrier()
print(sorted(store.list_keys()))
""",
    "large objects": """
everybody = [None] * n
dist.all_gather_object(everybody, [rank] * 50_000)
print([len(item) for item in everybody])
told = [list(range(50_000)) if rank == 2 else None]
dist.broadcast_object_list(told, 2)
print(len(told[0]))
""",
    "forked processes": """
import multiprocessing
for step in range(3):
    dist.all_reduce(x)
child = multiprocessing.get_context("fork").Process(target=time.process_time)
child.start()
child.join()
pid = os.fork()
if pid == 0:
    sys.exit(4)
print(os.waitpid(pid, 0)[1] >> 8)
dist.all_reduce(x)
""",
    "polling": """
work = dist.all_reduce(x, async_op=True)
polls = 0
while not work.is_completed():
    polls += 1
print(polls)
""",
    "works that nobody waits for": """
for size in (10, 100, 1000):
    dist.all_reduce(torch.ones(size << 10), async_op=True)
    torch.ones(256 * (rank + 1), 256) @ torch.ones(256, 256)
""",
    "groups": """
pairs = [dist.new_group([first, first + 1]) for first in range(0, n, 2)]
dist.all_reduce(x, group=pairs[rank // 2])
dist.destroy_process_group()
""",
    "output": """
print("to stderr", rank, file=sys.stderr)
dist.barrier()
os.system(f"echo from a command of rank {rank}")
""",
    "a file": """
if rank == n - 1:
    for _ in range(20):
        torch.ones(8192, 8192) @ torch.ones(8192, 8192)
    open(os.environ["SHARED"], "w").write("written")
    import numpy
    numpy.save(os.environ["SHARED"] + ".npy", [1, 2, 3])
dist.all_reduce(x)  # no barrier
print(os.path.exists(os.environ["SHARED"]), open(os.environ["SHARED"]).read())
import numpy
print(numpy.load(os.environ["SHARED"] + ".npy"))
dist.barrier()
if rank == 0:
    os.remove(os.environ["SHARED"])
    os.remove(os.environ["SHARED"] + ".npy")
""",
    "files of fake tensors": """
from labkit.clusters import device
path = os.environ["SHARED"] + str(rank)
device.write({"x": device.to_host(x)}, path)
print(device.read(path)["x"].shape)
""",
    "exits": """
dist.barrier()
print("before")
if rank > 3:
    os._exit(rank) if rank == 4 else sys.exit(rank)
""",
    "a collection of garbage without memory": """
for step in range(3):
    cycle = [step]
    cycle.append(cycle)
    dist.all_reduce(x)
    gc.collect()
""",
}
"""Programs whose ranks run ahead to their end."""
AGAIN = {
    "a deadlock": "print('before')\nif rank:\n    dist.all_reduce(x)\nprint('after')",
    "a deadlock that is caught": """
try:
    if rank:
        dist.all_reduce(x)
except RuntimeError as error:
    print(type(error).__name__)
""",
    "a mismatch": "dist.all_reduce(torch.ones((1 << 14) + rank))",
    "groups that differ": "dist.new_group([0, 1] if rank < 3 else [2, 3])",
    "a deadlock of ranks that poll": """
if rank < 2:
    work = dist.irecv(x, 1 - rank)
    while not work.is_completed():
        pass
""",
    "an error": "print('before')\ndist.barrier()\nif rank == 3:\n    raise ValueError('mine')\ndist.all_reduce(x)",
    "no more memory": "kept = [torch.empty(1 << 30) for _ in range(1000)]",
    "a time limit": """
from datetime import timedelta
limited = dist.new_group(timeout=timedelta(seconds=5))
try:
    if rank:
        dist.all_reduce(x, group=limited)
except RuntimeError as error:
    print(error)
""",
    "a profile": """
from torch.profiler import profile
with profile() as recorded:
    dist.all_reduce(x)
print(len(recorded.events()))
""",
    "a thread": """
told = []
thread = threading.Thread(target=lambda: told.append(rank))
thread.start()
thread.join()
print(told)
""",
    "a lock of all ranks": """
lock = vars(nn).setdefault("lock", threading.Lock())
for step in range(3):
    with lock:
        print(time.perf_counter())
    dist.all_reduce(x)
""",
    "files of other ranks": """
from labkit.clusters import device
device.write({"x": device.to_host(x)}, os.environ["SHARED"] + str(rank))
dist.barrier()
print(device.read(os.environ["SHARED"] + str((rank + 1) % n))["x"].shape)
""",
    "garbage that one rank collects": """
for step in range(3):
    cycle = [torch.ones(1 << 20)]
    cycle.append(cycle)
    del cycle
    dist.barrier()
    if rank == 0:
        gc.collect()
    dist.barrier()
""",
    "garbage that is found by the storages of all ranks, not by those of half of them": """
for step in range(25):
    cycle = [torch.ones(1 << 20)]
    cycle.append(cycle)
dist.all_reduce(x)
""",
    "garbage that is found in any case": """
for step in range(120):
    cycle = [torch.ones(1 << 20)]
    cycle.append(cycle)
    if step % 10 == 0:
        print(step)
        dist.all_reduce(x)
""",
}
"""Programs in which a rank learns something that it could not know ahead, or whose memory depends on luck."""


def run(program: str, processes: int, tmp_path: Path, end: str = END) -> tuple[Run, list[tuple[int, str, str]]]:
    told: list[tuple[int, str, str]] = []
    cluster = virtual(nnodes=2, nproc_per_node=RANKS // 2, fake=True, processes=processes)
    job = Job(source=HEAD + program + end, timeout=BROKEN_SECONDS, environment={"SHARED": str(tmp_path / "shared")})
    return cluster.run(job, lambda *output: told.append(output)), told


def seen(result: tuple[Run, list[tuple[int, str, str]]]) -> dict[str, Any]:
    """All that a run tells, except for real time."""
    ran, told = result
    return {
        "trace": ran.trace.to_json(),
        "ends": [(rank.exit, rank.error and replace(rank.error, traceback="")) for rank in ran.ranks],
        "stopped": (ran.stopped, ran.notes, ran.statuses, ran.diagnosis()),
        "output": [rank.output for rank in ran.ranks],
        "order of output": "".join(text for _, _, text in told),
    }


@pytest.mark.parametrize("name", AHEAD)
def test_the_run_is_that_of_threads(name: str, tmp_path: Path) -> None:
    threads = seen(run(AHEAD[name], 1, tmp_path))
    ahead = run(AHEAD[name], 2, tmp_path)
    assert seen(ahead) == threads
    assert len({rank.value for rank in ahead[0].ranks} - {None}) == 2, "they have run again, in one process"


@pytest.mark.parametrize("name", AGAIN)
def test_ranks_run_again_for_what_they_cannot_know_ahead(name: str, tmp_path: Path) -> None:
    assert seen(run(AGAIN[name], 2, tmp_path)) == seen(run(AGAIN[name], 1, tmp_path))


def test_the_number_of_processes_changes_nothing(tmp_path: Path) -> None:
    runs = [run(AHEAD["messages"], processes, tmp_path) for processes in (1, 3, 20)]
    assert [len({rank.value for rank in ran.ranks}) for ran, _ in runs] == [1, 3, 3]
    assert all(seen(other) == seen(runs[0]) for other in runs[1:])


def test_ranks_that_learn_something_all_the_time_run_in_one_process(tmp_path: Path) -> None:
    number = f"""
number = torch.tensor([rank])
for step in range({QUESTIONS}):
    sending = dist.isend(number, (rank + 1) % n)
    dist.recv(number, (rank - 1) % n)
    sending.wait()
print(number.item())
"""
    runs = [run(number, processes, tmp_path) for processes in (1, 2)]
    assert [len({rank.value for rank in ran.ranks}) for ran, _ in runs] == [1, 1]
    assert seen(runs[1]) == seen(runs[0])


@pytest.mark.parametrize("seeds", [range(at, 40, 4) for at in range(4)], ids=lambda s: f"from {s[0]}")
def test_random_programs_end_alike(seeds: range) -> None:
    for seed in seeds:
        program = generate(seed)
        text, _ = source(program, stubborn=seed % 3 == 0)
        # each program prints where it is, and half of them the time
        place = "def done(place, x=None): print(place" + ", clock.now)\n" * (seed % 2) + ")\n" * (1 - seed % 2)
        text = text[: text.index("def done")] + place + text[text.index("g0 =") :]
        # sizes whose values are never known
        job = Job(source=text.replace(", 2000,", ", 20000,"), filename="program", timeout=BROKEN_SECONDS)
        clusters = [virtual(nnodes=program.n, nproc_per_node=1, fake=True, processes=number) for number in (1, 2)]
        runs = [cluster.run(job) for cluster in clusters]
        assert runs[1].trace.to_json() == runs[0].trace.to_json(), f"seed {seed}:\n{text}"
        assert runs[1].diagnosis() == runs[0].diagnosis(), f"seed {seed}"
        assert [rank.output for rank in runs[1].ranks] == [rank.output for rank in runs[0].ranks], f"seed {seed}"


@pytest.mark.parametrize("again", [False, True], ids=["ahead", "after a profile"])
def test_a_run_that_hangs_tells_what_was_printed_and_where_each_rank_is(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LateClock()
    monkeypatch.setattr(shared(), "clock", clock)
    printed: list[str] = []

    def listen(rank: int, stream: str, text: str) -> None:
        if rank == 3:
            printed.append(text)
            if "two" in "".join(printed):
                clock.start()

    program = """
from torch.profiler import profile
if again:
    with profile():  # the ranks run again
        pass
dist.barrier()
print("one")
print("two")
if rank == 3:
    while True:
        pass
dist.barrier()
"""
    job = Job(source=f"again = {again}\n{HEAD}{program}", timeout=1)
    at_last = threading.Timer(120, clock.start)
    at_last.start()
    ran = virtual(nproc_per_node=RANKS, fake=True, processes=2).run(job, listen)
    at_last.cancel()
    assert ran.stopped == "timeout after 1 s"
    assert [rank.output for rank in ran.ranks[:4]] == ["one\ntwo\n"] * 4
    lines = [rank.error.frames[-1][3] if rank.error and rank.error.frames else "" for rank in ran.ranks]
    assert lines[:3] == ["dist.barrier()"] * 3
    assert lines[3] in ("pass", "while True:")


def test_a_forked_process_prints_at_once(tmp_path: Path) -> None:
    program = """
dist.all_reduce(x)
print("before")
if os.fork() == 0:
    print("in the child")
    os._exit(0)
os.wait()
dist.all_reduce(x)
print("after")
"""
    ran, _ = run(program, 2, tmp_path)
    for output in [rank.output for rank in ran.ranks]:
        assert [output.count(text) for text in ("before", "in the child", "after", "\n")] == [1, 1, 1, 3]
    assert len({rank.value for rank in ran.ranks}) == 2


def test_a_crash_names_its_rank_and_what_happened_before(tmp_path: Path) -> None:
    program = "dist.barrier()\nprint('before')\nif rank == 3:\n    import ctypes\n    ctypes.string_at(0)\n"
    ran, _ = run(program, 2, tmp_path)
    threads, _ = run(program, 1, tmp_path)
    assert ran.ranks[3].error is not None
    assert ran.ranks[3].error.type == "SIGSEGV"
    assert ran.ranks[3].error.frames == threads.ranks[3].error.frames  # type: ignore[union-attr]
    assert [rank.output for rank in ran.ranks[:3]] == ["before\n"] * 3


def test_a_crash_is_noticed_while_a_forked_process_lives_on(tmp_path: Path) -> None:
    program = """
if rank == 3:
    if os.fork() == 0:
        time.sleep(200)
        os._exit(0)
    import ctypes
    ctypes.string_at(0)
dist.barrier()
"""
    ran, _ = run(program, 2, tmp_path)
    assert ran.ranks[3].error is not None
    assert ran.ranks[3].error.type == "SIGSEGV"
    assert ran.wall_seconds < 150


def test_nothing_is_left_when_a_run_is_stopped(tmp_path: Path) -> None:
    pids: list[int] = []

    def stop(rank: int, stream: str, text: str) -> None:
        pids.extend(int(line) for line in text.splitlines() if line.isdigit())
        if len(set(pids)) > 1:
            raise KeyboardInterrupt

    cluster = virtual(nproc_per_node=RANKS, fake=True, processes=2)
    program = "print(os.getpid(), flush=True)\ndist.barrier()\nwhile True:\n    pass\n"
    with pytest.raises(KeyboardInterrupt):
        cluster.run(Job(source=HEAD + program), stop)
    for pid in set(pids):
        while os.path.exists(f"/proc/{pid}") and _state(pid) != "Z":
            pass


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_rank_that_has_just_ended_does_not_wait_for_a_lock() -> None:
    # the worker looks at the running rank all the time, so that some ranks end within a look
    program = """
import os
from time import perf_counter
from labkit.clusters.virtual.hosts import recording_worker

class Replay:
    def has_come_in(self):
        return False

    def send(self, message):
        rank, record = message
        if rank == recording_worker.GIVEN_UP:
            os._exit(1)

def run(endpoint):
    end = perf_counter() + 0.002
    while perf_counter() < end:
        pass
    return False

recording_worker._LOOK_SECONDS = 1e-4
recording_worker.RecordingWorker(Replay(), range(300), run).run()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_few_ranks_and_ranks_on_real_tensors_stay_in_one_process() -> None:
    program = "import os\nos.getpid()"
    for cluster in (virtual(nproc_per_node=4, fake=True), virtual(nproc_per_node=16)):
        assert len(set(cluster.run(Job(source=program)).raise_if_failed().values)) == 1
    with pytest.raises(InvalidJob, match="give fake, too"):
        virtual(nproc_per_node=16, processes=2)
