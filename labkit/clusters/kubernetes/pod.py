"""The command of each pod: `python -m labkit.clusters.kubernetes.pod FOLDER SECONDS`. Runs the node's agent.

FOLDER is where the run's Secret is mounted. Besides the request it holds a number that the notebook increases as long
as it waits for this run, and which Kubernetes delivers here within a minute or two. If it has not changed for SECONDS,
nobody will ever read the result: the pod ends and releases its GPUs. That needs no permission in the cluster.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from torch.distributed import DistError

from labkit.clusters.agent import LaunchPlan
from labkit.clusters.agent.node import NodeAgent
from labkit.clusters.kubernetes.manifest import ALIVE, REQUEST, unpacked
from labkit.clusters.run_store import RunStore, StoreAddress, WrongSecret

NODE_VARIABLE = "JOB_COMPLETION_INDEX"
"""Set by Kubernetes in the pods of an indexed Job."""
_TERMINATION_MESSAGE = Path("/dev/termination-log")
_EXIT_SILENT = 75
_ALL_INTERFACES = "0.0.0.0"
"""Of the pod, which no other user is in, and whose own name it may not know yet."""


def main(folder: Path, silence: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Run as this pod's node until its run has ended. clock: measures the notebook's silence, in seconds."""
    # the first process of a container has to handle SIGTERM to be ended by it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    node = int(os.environ[NODE_VARIABLE])
    plan = unpacked((folder / REQUEST).read_bytes())
    threading.Thread(target=_end_when_silent, args=(folder / ALIVE, silence, clock), daemon=True).start()
    # a library's output goes elsewhere: only the agent's lines are read
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    agent = NodeAgent(node, plan.nnodes, out, plan.master_port, _ALL_INTERFACES, plan.secret)
    if plan.nnodes > 1:
        _meet(plan, node)
    agent.run_once(plan)


def _meet(plan: LaunchPlan, node: int) -> None:
    """Wait until all nodes are here: the first may come long before the last, and its ranks' time must not run yet."""
    while True:
        try:
            # a pod has a name only once it has a node
            socket.getaddrinfo(plan.master_addr, plan.master_port)
            address = StoreAddress(plan.master_addr, plan.master_port, plan.secret, f"{plan.run}/pods")
            here = RunStore(address, timedelta(seconds=10))
            here.set(str(node), "here")
            # not wait(), during which signals would have to wait too
            while not here.check([str(each) for each in range(plan.nnodes)]):
                time.sleep(0.1)
            return
        except (socket.gaierror, DistError, WrongSecret):  # the last: an address may still be that of an earlier pod
            time.sleep(0.2)


def _end_when_silent(file: Path, silence: float, clock: Callable[[], float]) -> None:
    seen, since = b"", clock()
    while clock() - since < silence:
        time.sleep(min(5.0, silence / 10))
        with contextlib.suppress(OSError):  # it is being replaced
            now = file.read_bytes()
            if now != seen:
                seen, since = now, clock()
    with contextlib.suppress(OSError):
        _TERMINATION_MESSAGE.write_text(f"the notebook that began this run has not been heard of for {silence:g} s")
    # this is the container's first process: all others end with it
    os._exit(_EXIT_SILENT)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
