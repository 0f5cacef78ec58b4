"""The processes that run ranks on fake tensors ahead of the virtual clock (recording_worker.py), for the replay."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from labkit.clusters.forkserver import rank_process
from labkit.clusters.virtual.endpoints.recording import Channel
from labkit.clusters.virtual.endpoints.threads import stay_together
from labkit.clusters.virtual.hosts.recording_worker import GIVEN_UP, HELD, HOSTS, RELEASED, WANTED
from labkit.linux.prctl import die_with_parent

_STACKS_BYTES = 1 << 35
"""More than the stacks of all threads of a process."""


_LOOK_SECONDS = 1.0


class GivenUp(Exception):
    """The ranks must run again, not ahead."""


class RecordingProcesses:
    """Processes in which `main(number, channel)` runs, and the connections to them. Call `close` at the end."""

    def __init__(
        self, number: int, main: Callable[[int, Channel], None], hosted_by: Callable[[int, int], None]
    ) -> None:
        """`hosted_by(rank, thread)` is called with the identifier of each rank's thread."""
        self._hosted_by = hosted_by
        self._channels: list[Channel] = []
        self._wanted = -1
        self._pids: dict[int, int] = {}
        self._stacks: list[int] = []
        """Files into which the workers write where their threads are."""
        self._arrived: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        cpus = sorted(os.sched_getaffinity(0))
        parent = os.getpid()
        for index in range(number):
            ours, theirs = socket.socketpair()
            stacks = os.memfd_create("stacks")
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    die_with_parent(parent)
                    ours.close()
                    for channel in self._channels:
                        channel.close()
                    # no two on one CPU, nor all of such runs on the same CPUs
                    stay_together(cpus[(parent + index * len(cpus) // number) % len(cpus)])
                    # the stacks of threads in several processes are told apart by the addresses of the threads
                    apart = mmap.mmap(-1, (1 + index) * _STACKS_BYTES, mmap.MAP_PRIVATE, prot=0)
                    rank_process.write_stacks_into(stacks)
                    main(index, Channel(theirs))
                    apart.close()
                    rank_process.end_as_a_program_does()
                    status = 0
                except BaseException:  # nothing may escape into the host's code, of which this process is a copy
                    traceback.print_exc()
                finally:
                    os._exit(status)
            theirs.close()
            self._pids[index] = pid
            self._stacks.append(stacks)
            self._channels.append(Channel(ours))
        rank_process.tell_stacks_of(lambda: {pid: self._stacks[index] for index, pid in self._pids.items()})
        for index in range(number):
            threading.Thread(target=self._listen, args=(index,), name="records", daemon=True).start()

    def _listen(self, index: int) -> None:
        # reads on, whatever the replay does: a worker that cannot send reads no answers
        with suppress(Exception):  # above all the end of the stream
            while True:
                self._arrived.put((index, self._channels[index].receive()))
        self._arrived.put((index, None))

    def next_record(self) -> tuple[int, bytes]:
        """A rank and the next part of its record, from whichever rank has one. Raises GivenUp."""
        while True:
            try:
                index, message = self._arrived.get(timeout=_LOOK_SECONDS)
            except Empty:  # the end of a stream need not come: a process that a rank has forked holds it open
                self._check([*self._pids], os.WNOHANG)
                continue
            if message is None:
                if index in self._pids:
                    os.kill(self._pids[index], signal.SIGKILL)  # it may have sent something that cannot be read
                    self._check([index])
                continue
            rank, record = message
            if rank == GIVEN_UP:
                raise GivenUp(record)
            if rank == HOSTS:
                self._hosted_by(*record)
                continue
            if rank == self._wanted:
                self._wanted = -1
            return rank, record

    def _check(self, indices: Iterable[int], options: int = 0) -> None:
        """Forget processes that have ended. Raises GivenUp if the ranks of one had not ended before."""
        for index in indices:
            pid, status = os.waitpid(self._pids[index], options)
            if pid:
                del self._pids[index]
            if status:
                raise GivenUp("a process has crashed: the ranks of this one show which, and what happened before")

    def answer(self, rank: int, answer: Any) -> None:
        """Answer the question that a rank waits with."""
        self._tell(rank, (answer,))

    def want(self, rank: int) -> None:
        """Notify the rank's worker that the replay cannot go on without its record."""
        if rank != self._wanted:
            self._wanted = rank
            self._tell(rank, WANTED)

    def hold(self, rank: int, held: bool) -> None:
        """Notify a rank's worker that the rank is far enough ahead, or no longer is."""
        self._tell(rank, HELD if held else RELEASED)

    def of(self, rank: int) -> int:
        """The number of the worker that runs this rank."""
        return rank % len(self._channels)

    def _tell(self, rank: int, message: tuple[Any] | str) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended, which is noticed elsewhere
            self._channels[self.of(rank)].send((rank, message))

    def join(self) -> None:
        """Wait for the ends of the processes, after those of their ranks: what these have started may still go on."""
        for pid in self._pids.values():
            os.waitpid(pid, 0)
        self._pids.clear()

    def close(self) -> None:
        """End the processes."""
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids.values():
            os.waitpid(pid, 0)
        self._pids.clear()
        rank_process.tell_stacks()
