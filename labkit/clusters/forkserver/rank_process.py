"""Setup and teardown of a freshly forked process."""

from __future__ import annotations

import ast
import atexit
import faulthandler
import io
import multiprocessing.util
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy.random
import torch

from labkit.clusters import deepspeed_shared_memory
from labkit.clusters.forkserver import reports, scratch
from labkit.clusters.forkserver.output_batches import OutputBatches
from labkit.clusters.forkserver.progress import Slot, private_slot
from labkit.clusters.forkserver.request import Request
from labkit.clusters.rank_result import RankResult
from labkit.linux.clock import Clock
from labkit.linux.descriptors import close_all_but
from labkit.torch_versions.prefork_warmup import warm_up_groups
from labkit.trace import Trace
from labkit.transport import pickled


@dataclass(frozen=True)
class Descriptors:
    """Pipe ends and other descriptors of a process."""

    stdout: int
    stderr: int
    report: int
    stacks: int
    """File that receives the stacks of all threads, on a crash and on SIGUSR1."""
    shared: int
    """Empty file that all processes of the run have open."""
    socket: int | None = None
    commands: int | None = None
    """Descriptor on which the client's `input` arrives, if requested."""
    beginning: int | None = None
    """Pipe on which a process that was forked ahead receives its `Beginning`."""


@dataclass(frozen=True)
class Beginning:
    """Data that a process needs to begin."""

    request: Request
    index: int
    """Its number in the request."""
    began: float
    """Start of the run on the monotonic clock."""
    scratch: str | None = None
    """Folder for the files of multiprocessing; None: the one that its supervisor had when it was forked, if any."""


class ProcessReporter:
    """Writes reports into the process's pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._renew_lock()
        # the thread that passes output on may hold it while a rank forks
        os.register_at_fork(after_in_child=self._renew_lock)
        self._batches = OutputBatches(lambda *output: self._write(reports.output_frame(*output)))
        self.exit_code = 0
        """Exit code of the first rank that failed."""

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def output(self, rank: int, stream: str, text: str) -> None:
        self._batches.add(rank, stream, text)

    def result(self, result: RankResult) -> None:
        self.forward_result(reports.result_frame(result), result.exit)

    def forward_result(self, frame: bytes, exit_code: int | None) -> None:
        """Report the result of a rank that another process runs for this one: its frame."""
        self._batches.flush()
        self._write(frame)
        if self.exit_code == 0 and exit_code != 0:
            # the system keeps eight bits of an exit code, and failure must not look like success
            self.exit_code = (exit_code or 0) & 0xFF or 1

    def trace(self, trace: Trace) -> None:
        self._write(reports.trace_frame(trace))

    def note(self, text: str) -> None:
        self._write(reports.note_frame(text))

    def hosts(self, rank: int) -> None:
        self.hosted_by(rank, threading.get_ident())

    def hosted_by(self, rank: int, thread: int) -> None:
        """As `hosts`, for a rank in that thread of another process, whose stacks this one reports."""
        self._write(reports.thread_frame(rank, thread))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        with self._lock:
            while view:
                view = view[os.write(self._descriptor, view) :]


_shared_file = -1
_commands = -1
_stacks = -1
_STACKS_SECONDS, _STACKS_PAUSE = 0.8, 0.05
"""Time for several processes to write their stacks, and time without writing after which they count as written."""
_began = 0.0
_slot = private_slot()


def shared_file() -> str:
    """Path of a file that the processes of this run share, empty at first. It has no name and ends with them."""
    return f"/proc/self/fd/{_shared_file}"


def commands() -> int:
    """The descriptor from which this process reads the client's messages; ends with the run."""
    return _commands


def seconds() -> float:
    """Wall-clock seconds since the processes of this run were started; the same clock for all of them."""
    return time.monotonic() - _began


def tell_stacks() -> None:
    """Write the stacks of this process's threads for the supervisor when it asks, by SIGUSR1, or in a crash."""
    write_stacks_into(_stacks)


def write_stacks_into(descriptor: int) -> None:
    """Like `tell_stacks`, but into a file of its own, for a parent process that calls `tell_stacks_of`."""
    faulthandler.enable(descriptor)
    faulthandler.unregister(signal.SIGUSR1)  # else it would not replace the handler of `tell_stacks_of`
    faulthandler.register(signal.SIGUSR1, file=descriptor, all_threads=True)


def tell_stacks_of(processes: Callable[[], Mapping[int, int]], clock: Clock = time.monotonic) -> None:
    """Like `tell_stacks`, for forked processes. processes: returns the file into which each one writes, by PID."""

    def tell(*_: object) -> None:
        files = processes()
        before = {pid: os.fstat(file).st_size for pid, file in files.items()}
        for pid in files:
            os.kill(pid, signal.SIGUSR1)
        limit, sizes = clock() + _STACKS_SECONDS, before
        while clock() < limit:
            time.sleep(_STACKS_PAUSE)
            last, sizes = sizes, {pid: os.fstat(file).st_size for pid, file in files.items()}
            if sizes == last and all(sizes[pid] > before[pid] for pid in files):
                break
        os.write(_stacks, b"\n".join(os.pread(file, 1 << 20, before[pid]) for pid, file in files.items()))

    signal.signal(signal.SIGUSR1, tell)


def slot() -> Slot:
    """The memory in which this process records its operations, for its supervisor to read when there is no activity."""
    return _slot


def run(beginning: Beginning | None, descriptors: Descriptors, own: Slot) -> NoReturn:
    """Run as a process of a run, and end. beginning: None to wait for it; the process ends if it never comes."""
    global _began
    exit_code = 1
    try:
        _set_up(descriptors, own)
        if beginning is None:
            _warm_up()
            beginning = _received(descriptors.beginning)
        request, index, _began = beginning.request, beginning.index, beginning.began
        _adopt(beginning)
        reporter = ProcessReporter(descriptors.report)
        sock = None if descriptors.socket is None else socket.socket(fileno=descriptors.socket)
        request.entry.main(request.job, index, request.options, reporter, sock)
        exit_code = reporter.exit_code
        if exit_code == 0:
            end_as_a_program_does()
    except BaseException:  # nothing may escape into the supervisor's code, of which this process is a copy
        traceback.print_exc()
    finally:
        flush()
        # skips the interpreter's shutdown: it would tear down process groups whose peers are gone, and wait for them
        os._exit(exit_code)


def _warm_up() -> None:
    """Write, while there is time, into memory that every rank writes into, so that the kernel copies it now."""
    warm_up_groups(times=1)
    _seed_generators()
    compile(ast.parse("import torch\nx = [y for y in range(3)]\nprint(x[0])"), "<warm-up>", "exec")


def _received(pipe: int | None) -> Beginning:
    assert pipe is not None
    with open(pipe, "rb") as waiting:
        data = waiting.read()
    if not data:
        os._exit(0)
    beginning: Beginning = pickled.loads(data)
    return beginning


def _set_up(descriptors: Descriptors, own: Slot) -> None:
    """Separate this process from its supervisor, whatever it will run."""
    global _shared_file, _commands, _slot, _stacks
    _shared_file, _slot = descriptors.shared, own
    _commands = -1 if descriptors.commands is None else descriptors.commands
    null = os.open(os.devnull, os.O_RDONLY)
    for ours, standard in ((null, 0), (descriptors.stdout, 1), (descriptors.stderr, 2)):
        os.dup2(ours, standard)
    kept = {descriptors.report, descriptors.stacks, descriptors.socket, descriptors.shared, descriptors.commands}
    close_all_but({0, 1, 2, *kept, descriptors.beginning})
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _line_buffered(1), _line_buffered(2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _stacks = descriptors.stacks
    tell_stacks()
    # functions registered before the fork belong to the forkserver
    atexit._clear()
    deepspeed_shared_memory.leave_out_when_imported()


def _adopt(beginning: Beginning) -> None:
    """Take over environment, folder, path and arguments."""
    request, index = beginning.request, beginning.index
    scratch.use(beginning.scratch)
    if request.environment is not None:
        os.environ.clear()
        os.environ.update(request.environment)
    os.environ.update(request.environments[index])
    if os.environ.get("MPLBACKEND", "").startswith("module://matplotlib_inline"):
        os.environ["MPLBACKEND"] = "module://labkit.clusters.no_screen"
    if request.folder is not None:
        os.chdir(request.folder)
    if request.path is not None:
        sys.path[:] = request.path
    script = request.job.script
    sys.argv[:] = [request.job.filename] if script is None else script.argv
    if script is not None:
        sys.path.insert(0, script.folder)
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    if threads.isdigit() and int(threads) > 1:
        torch.set_num_threads(int(threads))
    if request.entry.prepare is None:
        # forked copies of one generator would draw the same numbers on every rank
        _seed_generators()


def _seed_generators() -> None:
    numpy.random.seed()
    # torch.seed() would look for GPUs, whose generators are created and seeded on first use
    torch.default_generator.seed()


def end_as_a_program_does() -> None:
    """Wait for other threads and child processes, then run the exit functions. There is no public function for this."""
    threading._shutdown()  # type: ignore[attr-defined]
    multiprocessing.util._exit_function()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def _line_buffered(descriptor: int) -> io.TextIOWrapper:
    """A line-buffered stream, as on a terminal: lines are written in one piece, so that children's lines do not mix."""
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def flush() -> None:
    """Flush the printed output."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # the learner may have replaced or closed it
            continue
