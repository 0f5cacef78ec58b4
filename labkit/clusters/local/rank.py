"""One rank of the local cluster, in its own fresh process."""

from __future__ import annotations

import itertools
import os
import socket
import sys
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch.distributed as dist

from labkit.clusters.job import Job
from labkit.clusters.program import execute
from labkit.clusters.torch_versions import rendezvous_with
from labkit.clusters.warm import Reporter, shared_file


def main(job: Job, index: int, options: Mapping[str, Any], reporter: Reporter, sock: socket.socket | None) -> None:
    """Run `job` as rank `index` and report how it ended."""
    began: float = options["began"]
    attempts = itertools.count()

    def store(world_size: int) -> dist.Store:
        # a program may destroy its group and make another: it must not read what the first one left
        return dist.PrefixStore(f"{next(attempts)}", dist.FileStore(shared_file(), world_size))

    rendezvous_with(store, lambda: index, options["world_size"])
    reporter.result(execute(job, index, lambda: time.monotonic() - began))
