"""A zygote: forks a process for each request, and tells the client who asked how that process ends.

A request is one datagram, with the descriptors of the program: the first three become its standard streams. The zygote
answers with the PID, and with the exit status when the process has ended. Whoever can connect can run any program with
the zygote's rights: the address must be within reach of nobody else.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing.process import current_process
from typing import Any

import numpy as np

from labkit.linux import descriptors, prctl, processes
from labkit.transport import datagrams
from labkit.zygote.request import Request, address_of

MAX_DESCRIPTORS = 16
_REQUEST_SECONDS = 5.0
"""Time that a client has for its request, in which no other is served."""
_AUTHENTICATION_BYTES = 32

Program = Callable[[], object]


def listen(address: str) -> socket.socket:
    """Return a listening socket. address: a path, or a name after `@`, which only this network namespace has."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    opened.bind(address_of(address))
    opened.listen(128)
    return opened


def serve(listening: socket.socket) -> Program:
    """Fork a process for each request. Returns in forked processes only: what is to be run there."""
    clients: dict[int, socket.socket] = {}
    """The connection of each process that has not ended, by its PID."""
    woken, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([listening.fileno(), woken], [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            for pid, status in processes.ended_children():
                if (client := clients.pop(pid, None)) is not None:
                    _tell(client, {"status": os.waitstatus_to_exitcode(status)})
                    client.close()
        if listening.fileno() in ready:
            connection, _ = listening.accept()
            program = _forked(connection, clients)
            if program is not None:
                return program


def _forked(connection: socket.socket, clients: dict[int, socket.socket]) -> Program | None:
    """Fork a process for the request that comes on this connection. Returns its program, in that process only."""
    connection.settimeout(_REQUEST_SECONDS)
    given: list[int] = []
    try:
        fields, given = datagrams.receive(connection, MAX_DESCRIPTORS)
        if fields is not None:
            Request.check(fields)
        pid = os.fork() if fields is not None else 0
    except (OSError, ValueError) as problem:
        _tell(connection, {"error": str(problem)})
        fields = None
    if fields is not None and pid == 0:
        return lambda: _become(fields, given)
    for descriptor in given:
        os.close(descriptor)
    if fields is None:
        connection.close()
    else:
        _tell(connection, {"pid": pid})
        clients[pid] = connection
    return None


def _tell(connection: socket.socket, message: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # it no longer wants to know
        datagrams.send(connection, message)


def _become(fields: Mapping[str, Any], given: list[int]) -> object:
    """Be the program."""
    start_afresh()
    for standard, descriptor in enumerate(given[:3]):
        os.dup2(descriptor, standard)
    own = given[3:]
    descriptors.close_all_but([0, 1, 2, *own])
    for descriptor in own:
        os.set_inheritable(descriptor, False)
    os.setsid()
    prctl.set_name(fields["name"])
    os.environ.clear()
    os.environ.update(fields["environment"])
    os.chdir(fields["folder"])
    asked = Request.from_fields(fields)
    return asked.program(asked.arguments, own)


def start_afresh() -> None:
    """Undo what a forked process has of the zygote: its signals, and what only one process should have."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    current_process().authkey = os.urandom(_AUTHENTICATION_BYTES)
    tempfile.tempdir = None
    np.random.seed()
    gc.enable()


def share() -> None:
    """Keep what exists now shared between all forks: the collector, which writes into objects, no longer visits it."""
    gc.collect()
    gc.freeze()
