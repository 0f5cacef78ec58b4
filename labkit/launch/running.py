"""Run tasks from a shell: their output as ranks print it, failures as text, the exit status."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from labkit.clusters import Cluster, InvalidJob, Job, Run, State
from labkit.clusters.cluster import BatchCluster, ModelledCluster, ReleasableCluster, RemoteCluster
from labkit.clusters.forkserver.client import ForkServerDied
from labkit.launch import options, programs
from labkit.launch.exit_status import FAILED, INTERRUPTED, TERMINATED, UNREAD
from labkit.launch.output import LiveOutput
from labkit.launch.tasks import Task
from labkit.rank_output import failures

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def run_tasks(tasks: Sequence[Task], in_batch_job: bool = False) -> int:
    """Run tasks one after the other until one fails that may not; return its exit status, or 0.

    in_batch_job: whether this process runs in a batch job of the cluster, whose nodes are for the tasks.
    Raises `InvalidJob` for a task that its cluster cannot run.
    """
    for task in tasks:
        if task.title:
            print(task.title, file=sys.stderr)
        status = _run_task(task, in_batch_job)
        if status and not (task.may_fail and status == FAILED):
            return status
    return 0


def _run_task(task: Task, in_batch_job: bool) -> int:
    cluster = options.cluster(task.options)
    if in_batch_job and isinstance(cluster, BatchCluster):
        cluster = cluster.in_batch_job()
    try:
        programs.require_syntax(task.job)
    except programs.ProgramSyntaxError as error:
        print(error, file=sys.stderr)
        return FAILED
    task.show_lines()
    return run(cluster, task.job)


def run(cluster: Cluster, job: Job) -> int:
    """Run `job` and return the exit status. Raises `InvalidJob` for a job that the cluster cannot run."""
    if isinstance(cluster, RemoteCluster):
        cluster.require()
    nnodes, nproc_per_node = job.nnodes or cluster.nnodes, job.nproc_per_node or cluster.nproc_per_node
    of_node = nproc_per_node if nnodes > 1 and isinstance(nproc_per_node, int) else None
    with _terminable() as terminated:
        try:
            with LiveOutput(isinstance(cluster, ModelledCluster), of_node) as output:
                done = cluster.run(job, output.on_output, _States())
        except KeyboardInterrupt as interrupt:
            _tell(["terminated" if terminated else "interrupted", *getattr(interrupt, "__notes__", ())])
            return TERMINATED if terminated else INTERRUPTED
        except BrokenPipeError:
            # else Python would report the broken pipe again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return UNREAD
        except ForkServerDied as error:
            raise InvalidJob(str(error)) from None
        finally:
            if isinstance(cluster, ReleasableCluster):
                cluster.release()
    return _report(done)


def _report(done: Run) -> int:
    _tell([f"note: {note}" for note in done.notes])
    if done.ok:
        return 0
    _tell(failures.render(done, _short))
    return FAILED


def _tell(lines: list[str]) -> None:
    """Print lines to stderr, in colour if it is a terminal."""
    for line in lines:
        print(line if sys.stderr.isatty() else _COLOUR.sub("", line), file=sys.stderr)


def _short(file: str) -> str:
    """A file's path as a user would type it."""
    return os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else file


class _States:
    """Prints what a cluster reports about a job, once: its place in a queue, restarts, hangs."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, state: State) -> None:
        if state.text and state.text != self._last:
            _tell(state.text.splitlines())
        self._last = state.text


@contextmanager
def _terminable() -> Iterator[list[int]]:
    """Within the context SIGTERM interrupts, as Ctrl-C does; the list then has the signal's number."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        handler = signal.getsignal(signal.SIGINT)  # may hold interrupts back for a moment
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)
