"""The forkserver: has torch imported and does nothing but fork a supervisor for each run.

It stays single-threaded and never touches CUDA, since a fork copies neither threads nor a CUDA context.
The client starts it through launch.py, with the number of a descriptor; it ends when the client does,
and, where the site asks for it, when it is idle: the client then starts another one.
"""

from __future__ import annotations

import gc
import itertools
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from labkit.clusters.clock import Clock, wait_seconds
from labkit.clusters.forkserver import scratch
from labkit.clusters.forkserver.entry import Entry
from labkit.clusters.forkserver.spares import Shape, Spares
from labkit.clusters.forkserver.supervisor import supervise, supervise_ahead
from labkit.hub import idle_minutes
from labkit.linux import huge_pages, prctl, processes
from labkit.torch_versions import early_imports
from labkit.torch_versions.prefork_warmup import warm_up_groups
from labkit.transport import datagrams
from labkit.zygote.server import share

_QUIET_SECONDS = 2.0
"""Time without requests after which the forkserver begins with what makes later runs start faster, spares at last."""
_LOOK_SECONDS = 2.0
"""Time between two looks whether any child is left."""


def serve(
    control: socket.socket,
    meanwhile: Iterable[None] = (),
    prepared: Entry | None = None,
    idle_seconds: float | None = None,
    clock: Clock = time.monotonic,
) -> None:
    """Fork a supervisor for every connection that arrives; return when the client is gone.

    meanwhile: work to do, one step at a time, while it is idle. prepared: the one entry that this process is
    prepared for. Other entries with a preparation each get a process of their own, which calls this for them.
    idle_seconds: return, too, so long after the last request, once nothing that was forked here is left. clock: that
    of all waits here.
    """
    children: set[int] = set()
    signal.signal(signal.SIGCHLD, lambda *_: _reap(children))
    # children of a supervisor that is killed become children of this process
    prctl.adopt_orphans()
    known: set[Entry | str] = set()
    others: dict[Entry, socket.socket] = {}
    left = iter(meanwhile)
    supervisors: set[int] = set()  # those of runs
    ahead = Spares()
    while True:
        supervisors &= children
        work = itertools.chain(left, _fork_ahead(ahead, control, children, supervisors))
        if not _something_comes(control, work, lambda: children - {ahead.pid}, idle_seconds, clock):
            return  # a request that comes now is lost with `control`: the client notices, and starts another process
        asked, descriptors = datagrams.receive(control, 1)
        if asked is None:
            return
        entry = Entry.from_text(asked["entry"])
        wanted = {entry, *(early_imports.MODULES if asked["early_imports"] else ())}
        if not wanted <= known:
            entry.import_all()
            if asked["early_imports"]:
                list(early_imports.load())
            known |= wanted
            share()
            ahead.dismiss()
        shape = Shape(entry, asked["spares"])
        if not descriptors:
            ahead.expect(shape)
            continue
        connection = socket.socket(fileno=descriptors[0])
        if entry != prepared and entry.prepare is not None:
            _hand_on(connection, others, entry, asked, control, children, idle_seconds, clock)
        elif pid := ahead.take(shape, connection):
            supervisors.add(pid)
        else:
            with _child(children, signal.SIGTERM) as pid:
                if pid == 0:
                    control.close()
                    supervise(connection)
            supervisors.add(pid)
        connection.close()


def _fork_ahead(
    ahead: Spares, control: socket.socket, children: set[int], supervisors: set[int]
) -> Iterator[float | None]:
    """Fork the spares that are missing, once no run is under way: ranks that train need cores and memory themselves."""
    while ahead.missing is not None and children & supervisors:
        yield _LOOK_SECONDS
    if ahead.missing is not None:
        ours, theirs = datagrams.pair()
        with _child(children, signal.SIGTERM) as pid, theirs:
            if pid == 0:
                control.close()
                ours.close()
                supervise_ahead(theirs, ahead.missing.count)
        ahead.have(pid, ours)
    yield None


def _hand_on(
    connection: socket.socket,
    others: dict[Entry, socket.socket],
    entry: Entry,
    asked: Mapping[str, Any],
    control: socket.socket,
    children: set[int],
    idle_seconds: float | None,
    clock: Clock,
) -> None:
    """Pass the request to the process that is prepared for its entry, and start one if there is none."""
    for _ in range(2):
        if entry not in others:
            others[entry], theirs = datagrams.pair()
            with _child(children, signal.SIGKILL) as pid:
                if pid == 0:
                    for held in (control, connection, *others.values()):
                        held.close()
                    _be_prepared(theirs, entry, idle_seconds, clock)
            theirs.close()
        try:
            datagrams.send(others[entry], asked, [connection.fileno()])
        except OSError:  # it has ended
            others.pop(entry).close()
        else:
            return


def _be_prepared(control: socket.socket, entry: Entry, idle_seconds: float | None, clock: Clock) -> NoReturn:
    try:
        assert entry.prepare is not None
        entry.prepare()
        for _ in huge_pages.collapse():
            pass  # done at once: many forks follow, and wait for it
        serve(control, prepared=entry, idle_seconds=idle_seconds, clock=clock)
    except Exception:  # its output is reported to the client
        traceback.print_exc()
    finally:
        os._exit(0)


@contextmanager
def _child(children: set[int], with_parent: int) -> Iterator[int]:
    """Fork; yields the pid: 0 in the child, which must not leave the block.

    with_parent: the signal that the child gets when we end.
    """
    parent = os.getpid()
    # a child that ends at once must be registered before its SIGCHLD arrives
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        prctl.die_with_parent(parent, with_parent)
    else:
        children.add(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    yield pid


def idle_work(import_early: bool) -> Iterator[None]:
    """What makes later runs start faster. import_early: import `early_imports`, too, which hold 70 MB."""
    if import_early:
        yield from early_imports.load()
    share()
    yield from huge_pages.collapse()


def _something_comes(
    control: socket.socket,
    work: Iterator[float | None],
    running: Callable[[], set[int]],
    idle_seconds: float | None,
    clock: Clock,
) -> bool:
    """Wait for it, and work while idle; return False after `idle_seconds` if nothing comes and nothing is running.

    Work begins after some quiet time: a process that is used only once need not do it.
    """
    limit = None if idle_seconds is None else clock() + idle_seconds
    if _readable(control, _QUIET_SECONDS if idle_seconds is None else min(_QUIET_SECONDS, idle_seconds), clock):
        return True
    for seconds in work:
        if _readable(control, seconds or 0, clock):
            return True
    while limit is None or clock() < limit or running():
        left = None if limit is None else limit - clock()
        if _readable(control, left if left is None or left > 0 else _LOOK_SECONDS, clock):
            return True
    return False


def _readable(control: socket.socket, seconds: float | None, clock: Clock) -> bool:
    """Whether something comes within `seconds`."""
    limit = None if seconds is None else clock() + seconds
    while not (ready := select.select([control], [], [], wait_seconds(clock, limit))[0]):
        if limit is not None and clock() >= limit:
            break
    return bool(ready)


def _reap(children: set[int]) -> None:
    for pid, status in processes.ended_children():
        if pid in children:
            children.discard(pid)
            if os.WIFSIGNALED(status):
                processes.kill_children_except(children)
                scratch.remove_that_of(pid)


def main(control: int) -> NoReturn:
    """Be a forkserver that a zygote has forked, warm already. control: the descriptor of the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # its heap is shared with the zygote's other forks: huge pages of its own would be another copy
    _serve_one_client(control, [])


def _serve_one_client(control: int, work: Iterable[None]) -> NoReturn:
    serve(socket.socket(fileno=control), work, idle_seconds=60 * idle_minutes.allowed() or None)
    os._exit(0)  # at once: a client that waits for the end should not wait for torch to be taken apart


if __name__ == "__main__":
    warm_up_groups()
    gc.enable()  # launch.py has disabled it
    # from here on the socket shows the client's end: the kernel would mistake the end of one thread for it
    prctl.outlive_parent()
    _serve_one_client(int(sys.argv[1]), idle_work(import_early=not idle_minutes.allowed()))
