"""`python -m labkit.clusters.agent`: started on each node by the cluster's own scheduler, not by people."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from pathlib import Path

from labkit.clusters.agent.node import NodeAgent
from labkit.transport import pickled


def main() -> None:
    """Serve a client at stdin and stdout, or run a request from a file."""
    parser = argparse.ArgumentParser(prog="labkit.clusters.agent")
    parser.add_argument("--node", type=int, required=True, help="this node's number, from 0")
    parser.add_argument("--nnodes", type=int, required=True, help="how many nodes there are")
    parser.add_argument("--port", type=int, default=0, help="for the store of node 0; 0: one that is free")
    parser.add_argument("--address", default="127.0.0.1", help="of node 0, by which the other nodes know it")
    parser.add_argument("--request", type=Path, help="a file with the one plan to run; without it, stdin is obeyed")
    parser.add_argument(
        "--silence", type=float, default=60.0, help="end when stdin has been silent for so many seconds"
    )
    options = parser.parse_args()
    # the lines go to the original stdout; other output here must not come between them
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    agent = NodeAgent(options.node, options.nnodes, out, options.port, options.address)
    if options.request is not None:
        agent.run_once(pickled.loads(options.request.read_bytes()))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with contextlib.suppress(SystemExit):
        agent.serve(0, options.silence)
    # torch takes a second to tear down, and a learner who has interrupted a cell would wait for it
    os._exit(0)


if __name__ == "__main__":
    main()
