"""Interrupts cells on local ranks at random moments, hundreds in a row, and reports what they leave behind.

Checks child processes, open files of this process and of the forkserver, and files in TMPDIR and /dev/shm. Both folders
are private, since other programs create files there at any time. A private /dev/shm needs a mount namespace; if none
can be created, it is not checked, and the result says so. Exit status 1: something is left, or an ordinary cell fails
afterwards.

    python benchmarks/soak.py [--cells 500] [--ranks 2] [--seed 0]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track

from labkit import Job, local
from labkit.clusters import Cluster
from labkit.clusters.forkserver.client import ForkServer
from labkit.linux.processes import descendants

PLAIN = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print("ready", flush=True)
dist.destroy_process_group()
"""
BUSY = """\
import os, signal, time, torch, torch.distributed as dist
from multiprocessing import shared_memory
from torch.utils.data import DataLoader, TensorDataset
signal.signal(signal.SIGINT, signal.SIG_IGN)
dist.init_process_group("gloo")
memory = shared_memory.SharedMemory(create=True, size=1000)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
for (x,) in DataLoader(TensorDataset(torch.randn(400, 8)), batch_size=4, num_workers=2, persistent_workers=True):
    dist.all_reduce(x)
print("ready", flush=True)
memory.unlink()
"""
OWN_SHARED_MEMORY = "LABKIT_SOAK_OWN_SHARED_MEMORY"
"""Set in the environment once /dev/shm is this program's own."""
LIMIT_SECONDS = 60.0
"""Processes that still exist after this time count as left over; a busy machine needs far less."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=500, help="how many (default %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of each (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments (default %(default)s)")
    options = parser.parse_args()
    if OWN_SHARED_MEMORY not in os.environ:
        _begin_again_with_own_shared_memory()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        problems = soak(options.cells, options.ranks)
    for problem in problems:
        print(problem)
    sys.exit(bool(problems))


def _begin_again_with_own_shared_memory() -> None:
    """Replace this process by one in a mount namespace with an empty /dev/shm; return if that is refused."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    mount = ["unshare", *user, "--mount", "sh", "-c", 'mount -t tmpfs -o mode=1777 tmpfs /dev/shm && exec "$@"', "sh"]
    try:
        allowed = subprocess.run([*mount, "true"], capture_output=True).returncode == 0
    except OSError:  # no unshare
        return
    if allowed:
        os.environ[OWN_SHARED_MEMORY] = "1"
        os.execvp(mount[0], [*mount, sys.executable, *sys.argv])


def soak(cells: int, ranks: int) -> list[str]:
    """Return descriptions of what was left; empty if nothing was."""
    # an environment of its own keeps it from forking ranks ahead, which would be mistaken for a cell's leftovers
    forkserver = ForkServer(environment=dict(os.environ))
    cluster = local(nproc_per_node=ranks, forkserver=forkserver)
    usual = {program: _seconds(cluster, program) for program in (PLAIN, BUSY, PLAIN, BUSY)}
    servers = set(_children())
    _wait_until_only(servers)
    before = _everything(servers)
    threads = threading.active_count()
    problems: list[str] = []
    interrupted, slowest = 0, 0.0
    for number in track(range(cells), "interrupted cells", console=Console(stderr=True), transient=True):
        program = random.choice((PLAIN, BUSY))
        main = threading.main_thread().ident or 0
        timer = threading.Timer(random.uniform(0, usual[program]), signal.pthread_kill, (main, signal.SIGINT))
        try:
            timer.start()
            cluster.run(Job(source=program))
            timer.join()
        except KeyboardInterrupt:
            interrupted += 1
        returned = time.monotonic()
        if leftover := _wait_until_only(servers):
            problems.append(f"cell {number}: processes {sorted(leftover)} are left after {LIMIT_SECONDS:g} s")
        slowest = max(slowest, time.monotonic() - returned)
    # the timer of the last interrupt may still be ending; an interrupted `join` takes it for ended
    limit = time.monotonic() + LIMIT_SECONDS
    while threading.active_count() > threads and time.monotonic() < limit:
        time.sleep(0.002)
    after = _everything(servers)
    for kind, seen in after.items():
        if seen != before[kind]:
            problems.append(f"{kind}: {before[kind]} before, {seen} after")
    if not cluster.run(Job(source=PLAIN)).ok:
        problems.append("an ordinary cell fails afterwards")
    forkserver.close()
    print(f"{cells} cells on {ranks} ranks, {interrupted} interrupted before their end; the last process of a cell was")
    print(f"gone at most {1e3 * slowest:.0f} ms after it returned. Left: {len(problems) or 'nothing'}")
    if OWN_SHARED_MEMORY not in os.environ:
        print("/dev/shm was not looked at: this machine refuses a mount namespace")
    return problems


def _seconds(cluster: Cluster, program: str) -> float:
    began = time.monotonic()
    cluster.run(Job(source=program)).raise_if_failed()
    return time.monotonic() - began


def _wait_until_only(servers: set[int]) -> set[int]:
    """Return the child processes, except the forkserver, that still exist after the time limit."""
    limit = time.monotonic() + LIMIT_SECONDS
    while (leftover := set(descendants(os.getpid())) - servers) and time.monotonic() < limit:
        time.sleep(0.002)
    return leftover


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _everything(servers: set[int]) -> dict[str, object]:
    """Return everything that a cell could leave behind."""
    seen: dict[str, object] = {
        "processes": len(descendants(os.getpid())),
        "open files here": len(os.listdir("/proc/self/fd")),
        "open files of the forkserver": [len(os.listdir(f"/proc/{pid}/fd")) for pid in servers],
        # importing torch's compiler creates this file
        "files in TMPDIR": sorted(name for name in os.listdir(tempfile.gettempdir()) if "inductor" not in name),
        "threads": threading.active_count(),
    }
    if OWN_SHARED_MEMORY in os.environ:
        seen["files in /dev/shm"] = sorted(os.listdir("/dev/shm"))
    return seen


if __name__ == "__main__":
    main()
