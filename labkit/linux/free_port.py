"""A port for a program that will listen there a little later."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

_LOWEST = 10_000  # services have their ports below
_TRIES = 100


def free_port() -> int:
    """A TCP port of this machine on which nothing listens.

    It lies below the range from which the system gives ports to connections and to programs that ask for any, so no
    other program gets it by chance in the meantime; within that range if it begins too low or nothing is free below.
    """
    try:
        highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        highest = _LOWEST
    below = [_LOWEST + secrets.randbelow(highest - _LOWEST) for _ in range(_TRIES)] if highest > _LOWEST else []
    for port in [*below, 0]:
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            chosen: int = probe.getsockname()[1]
            return chosen
    raise OSError("no TCP port of this machine is free")
