"""Ranks in a sandbox try to communicate without counted messages, and work as usual with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import BROKEN_SECONDS

from autograder.sandbox import Sandbox
from labkit.clusters import Job
from labkit.clusters.local import local
from labkit.clusters.virtual import virtual
from labkit.linux import landlock

pytestmark = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")

MEETS = """
import contextlib, glob, json, multiprocessing, os, socket, tempfile
from multiprocessing import shared_memory
import ctypes
import torch, torch.distributed as dist

libc = ctypes.CDLL(None)

def tried(action):
    try:
        return repr(action())
    except Exception as error:
        return type(error).__name__

def reached(action):
    found = []
    for pid in set(range(1, 60)) - {os.getpid()}:
        try:
            action(pid)
            found.append(pid)
        except OSError:
            pass
    return found

dist.init_process_group()
open("/tmp/debug.log", "a").write(f"rank {dist.get_rank()} was here")
note = tempfile.NamedTemporaryFile("w", prefix="note", delete=False)
note.write("seven")
note.flush()
total = torch.ones(3)
dist.all_reduce(total)
dist.barrier()
folders = ("/tmp", "/dev/shm", "/home/learner")
child = multiprocessing.get_context("fork").Process(target=print)
child.start()
child.join()
print(json.dumps({
    "files": [path for folder in folders for path in glob.glob(f"{folder}/*") if os.path.isfile(path)],
    "log": open("/tmp/debug.log").read(),
    "own note": note.name,
    "written": [tried(lambda: open(f"{folder}/x", "w").write("x")) for folder in folders],
    "refused": [tried(lambda: open(f"{folder}/x", "w")) for folder in ("/", "/dev", "/home")],
    "roots": reached(lambda pid: os.listdir(f"/proc/{pid}/root/tmp")),
    "processes": reached(lambda pid: os.listdir(f"/proc/{pid}")),
    "memory": reached(lambda pid: open(f"/proc/{pid}/mem", "rb")),
    "signals": reached(lambda pid: os.kill(pid, 0)),
    "socket": tried(socket.socket),
    "unix": tried(lambda: socket.socket(socket.AF_UNIX)),
    "pair": tried(lambda: [end.close() for end in socket.socketpair()]),
    "shared": tried(lambda: shared_memory.SharedMemory("meet", create=True, size=10).unlink()),
    "lock": tried(multiprocessing.get_context("fork").Lock().acquire),
    "mount": tried(lambda: os.unlink("/tmp/debug.log")) + str(libc.mount(b"none", b"/tmp", b"tmpfs", 0, b"")),
    "namespaces": libc.unshare(0x20000) + libc.unshare(0x10000000),
    "capabilities": sorted({line.split()[1] for line in open("/proc/self/status") if line.startswith("Cap")}),
    "files in common": [os.readlink(path) for path in glob.glob("/proc/self/fd/*") if os.path.lexists(path)
                        and os.readlink(path).startswith("/memfd:shared")],
    "null": tried(lambda: open("/dev/null", "w").write("x")),
    "random": tried(lambda: len(open("/dev/urandom", "rb").read(4))),
    "code": tried(lambda: len(__import__("wave").__name__)),
    "total": total.tolist(),
    "child": child.exitcode,
}))
"""


def test_ranks_meet_through_the_scheduler_only() -> None:
    with Sandbox().open() as instance:
        cluster = virtual(nnodes=2, nproc_per_node=1, ranks="processes", forkserver=instance.forkserver)
        run = cluster.run(Job(source=MEETS, timeout=BROKEN_SECONDS))
    for rank in run.ranks:
        assert rank.error is None, rank.error
        report = json.loads(next(line for line in rank.output.splitlines() if line.startswith("{")))
        assert report["total"] == [2.0] * 3
        assert (report["child"], report["null"], report["random"], report["code"]) == (0, "1", "4", "4")
        assert report["written"] == ["1"] * 3
        assert set(report["refused"]) <= {"PermissionError", "OSError"}
        assert sorted(report["files"]) == ["/tmp/debug.log", report["own note"]]
        assert report["log"] == f"rank {rank.rank} was here"
        assert (report["socket"], report["unix"]) == ("PermissionError", "PermissionError")
        assert report["pair"] == "[None, None]" and report["files in common"] == []
        assert (report["shared"], report["lock"]) == ("None", "True")
        assert (report["mount"], report["namespaces"]) == ("None-1", -2)
        assert report["capabilities"] == ["0" * 16]
        assert report["memory"] == report["roots"] == []
        assert len(report["processes"]) <= 1  # the one that is just being forked
        if landlock.version() >= 6:
            assert report["signals"] == []


TELLS = """
import json, os
import torch, torch.distributed as dist

lines = [line.split() for line in open("/proc/self/mountinfo")]
devices = {words[4].replace(chr(92) + "040", " "): words[2] for words in lines}  # as spaces are written there

def all_file_systems():
    return {point: os.statvfs(point) for point in devices}

def seems_written_to(before, now):
    # a rank's own torch may have made a file, or ended one
    return (before.f_bfree - now.f_bfree) * now.f_frsize >= 1 << 20 or before.f_ffree - now.f_ffree >= 20

dist.init_process_group()
before = all_file_systems()
dist.barrier()
if dist.get_rank() == 0:
    for folder in ("/tmp", "/dev/shm", "/home/learner"):
        for number in range(20):
            open(f"{folder}/{number}", "wb").write(bytes(1 << 20))
dist.barrier()
now = all_file_systems()
print(json.dumps([[point for point in now if seems_written_to(before[point], now[point])], devices]))
"""


def test_how_full_a_file_system_is_tells_other_ranks_nothing() -> None:
    with Sandbox().open() as instance:
        run = virtual(nproc_per_node=2, ranks="processes", forkserver=instance.forkserver).run(
            Job(source=TELLS, timeout=BROKEN_SECONDS)
        )
    (by_writer, _), (by_other, devices) = (json.loads(rank.output) for rank in run.ranks)
    assert {"/tmp", "/dev/shm", "/home/learner"} <= set(by_writer)
    # the machine's own file systems, its disks and devices, are changed by others
    machine = {line.split()[2] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    private = {point for point, device in devices.items() if device not in machine}
    assert {"/", "/tmp", "/dev", "/dev/shm", "/home/learner"} <= private
    assert not private & set(by_other), private & set(by_other)


MEETS_ON_REAL_RANKS = """
import contextlib, json, os, socket
import torch, torch.distributed as dist
from torch.utils.data import DataLoader

dist.init_process_group()
rank = dist.get_rank()
address = "\\0meet"
if rank == 0:
    for folder in ("/tmp", "/dev/shm", "/home/learner"):
        open(f"{folder}/meet", "w").write("7")
    meeting = socket.socket(socket.AF_UNIX)
    meeting.bind(address)
    meeting.listen()
pids = [None, None]
dist.all_gather_object(pids, os.getpid())
places = [f"{root}{folder}/meet" for root in ("", f"/proc/{pids[0]}/root", f"/proc/{pids[0]}/cwd")
          for folder in ("/tmp", "/dev/shm", "/home/learner")]
seen = [place for place in places if os.path.exists(place)]
with contextlib.suppress(OSError):
    socket.socket(socket.AF_UNIX).connect(address)
    seen.append("abstract socket")
for number in os.listdir("/proc/self/fd"):
    with contextlib.suppress(OSError):
        if os.readlink(f"/proc/self/fd/{number}").startswith("/memfd:shared"):
            seen.append("shared file")
total = torch.ones(3)
dist.all_reduce(total)
one = dist.new_group([1])  # which rank 0 does not wait for
batches = [int(batch.sum()) for batch in DataLoader(torch.arange(4), 2, num_workers=1)]
store = dist.distributed_c10d._get_default_store()
while hasattr(store, "underlying_store"):
    store = store.underlying_store
print(json.dumps([seen, total.tolist(), batches, type(store).__name__]))
"""


def test_real_ranks_meet_on_the_network_only() -> None:
    with Sandbox().open() as instance:
        run = local(2, backend="gloo", forkserver=instance.forkserver).run(
            Job(source=MEETS_ON_REAL_RANKS, timeout=BROKEN_SECONDS)
        )
    (by_writer, *_), (by_other, total, batches, store) = (json.loads(rank.output) for rank in run.ranks)
    assert by_writer[:3] == ["/tmp/meet", "/dev/shm/meet", "/home/learner/meet"]
    assert by_other == ([] if landlock.version() >= 6 else ["abstract socket"])
    assert (total, batches, store) == ([2.0] * 3, [1, 5], "TCPStore")


SHARES = """
import ctypes, json, os, sys
from autograder.sandbox.inside import apart, seccomp
from autograder.sandbox.inside.order import Order

limits = dict(processes=9, data_bytes=1 << 30, file_bytes=1, scratch_bytes=1 << 20, scratch_files=9, cpu_seconds=9)
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
seccomp.install(seccomp.for_this_machine(seccomp.filter_program))  # no namespaces for this process
problem = apart.keep_ranks_apart(Order(home=sys.argv[1], uid=None, **limits))
if os.fork() == 0:
    if os.fork() == 0:
        open(os.path.join(os.environ["HOME"], "x"), "w").close()
        print(json.dumps([problem, os.environ["TMPDIR"], os.getcwd(), os.listdir(".")]), flush=True)
        os.unlink("x")
        os._exit(0)
    os.wait()
    os._exit(0)
os.wait()
"""


def test_without_namespaces_ranks_have_folders_in_the_sandboxs_tmp(tmp_path: Path) -> None:
    tried = subprocess.run([sys.executable, "-c", SHARES, tmp_path], capture_output=True, text=True, check=True)
    problem, folder, current, files = json.loads(tried.stdout)
    os.rmdir(folder)
    assert "namespaces: Operation not permitted" in problem and folder.startswith("/tmp/rank-")
    assert (current, files) == (folder, ["x"])


def test_a_site_may_leave_ranks_together() -> None:
    source = "import socket\nopen('/dev/shm/x', 'w').close()\nsocket.socket().close()"
    with Sandbox(apart=False).open() as instance:
        run = virtual(nproc_per_node=1, ranks="processes", forkserver=instance.forkserver).run(
            Job(source=source, timeout=BROKEN_SECONDS)
        )
        assert run.ok, run.ranks[0].error
