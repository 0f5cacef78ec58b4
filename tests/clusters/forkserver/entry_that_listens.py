"""An entry whose process echoes what it is sent, until it is instructed to end; it reports SIGINT too."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from typing import Any

from labkit import Job
from labkit.clusters import RankResult
from labkit.clusters.forkserver.entry import Entry, Reporter
from labkit.clusters.forkserver.rank_process import commands


def main(job: Job, index: int, options: Mapping[str, Any], reporter: Reporter, sock: socket.socket | None) -> None:
    total = 0
    while data := os.read(commands(), 1 << 16):
        total += len(data)
        if data.endswith(b"sleep"):
            try:
                print("sleeping", flush=True)
                threading.Event().wait()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        elif data.endswith(b"end"):
            break
    print("last words", flush=True)
    reporter.result(RankResult(index, value=total))


ENTRY = Entry(main)
