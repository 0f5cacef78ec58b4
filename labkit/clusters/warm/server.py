"""The warm process: has torch imported and does nothing but fork a supervisor for each run.

It stays single-threaded and never touches CUDA, since a fork copies neither threads nor a CUDA context.
Started by the client through launch.py, with the number of a descriptor; ends when the client does.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterable, Iterator

# imported here so that no rank has to; DistributedDataParallel brings in _dynamo when it is first used
import torch
import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.nn.parallel
import torch.optim  # noqa: F401

from labkit.clusters.torch_versions import rehearse_groups
from labkit.clusters.warm import huge_pages, processes, scratch
from labkit.clusters.warm.fresh import entry_function
from labkit.clusters.warm.supervisor import supervise


def serve(control: socket.socket, meanwhile: Iterable[None] = ()) -> None:
    """Fork a supervisor for every connection that arrives; return when the client is gone.

    meanwhile: work to be done, a step at a time, while nothing has arrived.
    """
    supervisors: set[int] = set()
    signal.signal(signal.SIGCHLD, lambda *_: _reap(supervisors))
    # what a supervisor leaves behind when it is itself killed comes to this process
    processes.adopt_orphans()
    known: set[str] = set()
    left = iter(meanwhile)
    while True:
        _until_something_comes(control, left)
        message, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
        if not message:
            return
        entry = json.loads(message)["entry"]
        if entry not in known:
            entry_function(entry)
            known.add(entry)
            # what the collector never looks at stays shared between all forks
            gc.collect()
            gc.freeze()
        connection = socket.socket(fileno=descriptors[0])
        warm = os.getpid()
        # one that ends at once must be known when that is heard of
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if pid == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            processes.die_with_parent(warm, signal.SIGTERM)
            supervise(connection)
        supervisors.add(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        connection.close()


def _until_something_comes(control: socket.socket, work: Iterator[None]) -> None:
    for _ in work:
        if select.select([control], [], [], 0)[0]:
            return


def _reap(supervisors: set[int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in supervisors:
            supervisors.discard(pid)
            if os.WIFSIGNALED(status):
                processes.kill_children_except(supervisors)
                scratch.remove_that_of(pid)


if __name__ == "__main__":
    rehearse_groups()
    # from here on the client's end is read from the socket: the kernel would take the end of one thread for it
    processes.outlive_parent()
    serve(socket.socket(fileno=int(sys.argv[1])), huge_pages.collapse())
