"""Calls for a rank that is kept, one after the other, each with its connection to the scheduler."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.clusters.job import Job
from labkit.transport import descriptors, pickled


@dataclass(frozen=True)
class Call:
    """Description of what a rank runs."""

    job: Job
    rank: int
    options: Mapping[str, Any]
    environment: Mapping[str, str]
    """Additional environment variables."""


def send(control: socket.socket, call: Call, connection: socket.socket) -> None:
    """Send a call, and its connection. Raises `OSError` if the rank has ended."""
    pickled.send(control, call, [connection.fileno()])


def receive(control: socket.socket) -> Iterator[tuple[Call, socket.socket]]:
    """On a rank: yield the calls until the sender, which is trusted, is gone."""
    while True:
        try:
            call: Call = pickled.receive(control)
            (connection,) = descriptors.receive(control, 1)
        except EOFError:
            return
        yield call, socket.socket(fileno=connection)
