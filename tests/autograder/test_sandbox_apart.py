"""Virtual ranks in a sandbox try to meet without the scheduler, and work as ever with it."""

from __future__ import annotations

import json

import pytest

from autograder.sandbox import Sandbox
from autograder.sandbox.inside import landlock
from labkit.clusters import Job
from labkit.clusters.virtual import virtual

pytestmark = pytest.mark.skipif(not Sandbox().available, reason="needs bubblewrap")

MEETS = """
import glob, json, multiprocessing, os, socket, tempfile
from multiprocessing import shared_memory
import torch, torch.distributed as dist

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
note = tempfile.NamedTemporaryFile("w", prefix="note", delete=False)
note.write("seven")
note.flush()
total = torch.ones(3)
dist.all_reduce(total)
notes = [path for path in glob.glob("/tmp/*/note*") if path != note.name]
child = multiprocessing.get_context("fork").Process(target=print)
child.start()
child.join()
print(json.dumps({
    "written": [tried(lambda: open(f"{folder}/x", "w")) for folder in ("/tmp", "/dev/shm", "/home/learner", "/")],
    "others' notes": [tried(lambda path=path: open(path).read()) for path in notes],
    "own note": open(note.name).read(),
    "processes": reached(lambda pid: os.listdir(f"/proc/{pid}")),
    "memory": reached(lambda pid: open(f"/proc/{pid}/mem", "rb")),
    "signals": reached(lambda pid: os.kill(pid, 0)),
    "socket": tried(socket.socket),
    "unix": tried(lambda: socket.socket(socket.AF_UNIX)),
    "pair": tried(lambda: [end.close() for end in socket.socketpair()]),
    "shared": tried(lambda: shared_memory.SharedMemory("meet", create=True, size=10)),
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
    with Sandbox().open() as enclosure:
        cluster = virtual(nnodes=2, nproc_per_node=1, ranks="processes", warm=enclosure.warm)
        run = cluster.run(Job(source=MEETS, timeout=30))
    for rank in run.ranks:
        assert rank.error is None, rank.error
        report = json.loads(rank.output.splitlines()[-1])
        assert report["total"] == [2.0] * 3
        assert (report["own note"], report["child"], report["null"]) == ("seven", 0, "1")
        assert (report["random"], report["code"]) == ("4", "4")
        assert (report["socket"], report["unix"]) == ("PermissionError", "PermissionError")
        assert report["pair"] == "[None, None]" and report["files in common"] == []
        if landlock.version():
            assert set(report["written"]) <= {"PermissionError", "OSError"}
            assert report["others' notes"] == ["PermissionError"]
            assert report["memory"] == [] and report["shared"] == "PermissionError"
            assert len(report["processes"]) <= 1  # the one that is just being forked
        if landlock.version() >= 6:
            assert report["signals"] == []


def test_a_site_may_leave_ranks_together() -> None:
    source = "import socket\nopen('/dev/shm/x', 'w').close()\nsocket.socket().close()"
    with Sandbox(apart=False).open() as enclosure:
        run = virtual(nproc_per_node=1, ranks="processes", warm=enclosure.warm).run(Job(source=source, timeout=30))
        assert run.ok, run.ranks[0].error
