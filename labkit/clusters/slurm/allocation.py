"""A Slurm job that holds nodes for this program, and ends with it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
import weakref

from labkit.clusters import gpu_ledger
from labkit.clusters.cluster import OnState, State
from labkit.clusters.job import InvalidJob
from labkit.clusters.slurm import clients
from labkit.clusters.slurm.script import ResourceRequest, job_script

_CANCEL_LIMIT_SECONDS = 20.0
_MOST_SECONDS_BETWEEN_LOOKS = 10.0
# Submits, prints the number, and cancels at the end of its input, which comes at the latest when this program ends.
# It has its own session, so that the signals that end a notebook's kernel do not reach it.
_GUARD = """
trap '' HUP INT TERM PIPE
job=$(sbatch --parsable < "$1") || exit
job=${job%%;*}
echo "$job"
exec >/dev/null 2>&1
cat
scancel --quiet "$job" || { sleep 10; scancel --quiet "$job"; }
"""


class NeverStarts(InvalidJob):
    """Slurm has queued the job, but reports that it cannot start."""


class Allocation:
    """Nodes that this program has, or will get, from Slurm. Released by `release`, or by the program's end."""

    def __init__(self, asked: ResourceRequest) -> None:
        """Submit the job. Raises `InvalidJob` if Slurm rejects it."""
        self.asked = asked
        self.job_id = ""
        self.nodes: list[str] = []
        with tempfile.TemporaryFile("w+") as script:
            script.write(job_script(asked))
            script.flush()
            self._guard = subprocess.Popen(
                ["sh", "-c", _GUARD, "labkit", f"/dev/fd/{script.fileno()}"],
                env=clients.submitting_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[script.fileno()],
                text=True,
                errors="replace",
                start_new_session=True,
            )
        _all.add(self)
        try:
            assert self._guard.stdout is not None and self._guard.stderr is not None
            self.job_id = self._guard.stdout.readline().strip()
            if not self.job_id:
                message = clients.said(self._guard.stderr.read())
                clients.partitions()  # raises if Slurm does not answer
                raise InvalidJob(_with_partitions(f"Slurm refuses the job: {message}"))
        except BaseException:
            self.release()
            raise

    def state(self) -> clients.JobState:
        """State of the job."""
        return clients.job_state(self.job_id)

    def wait(self, on_state: OnState | None = None) -> None:
        """Return when the nodes are allocated. Raises `NeverStarts`, or `InvalidJob` if the job ended in the queue."""
        began = time.monotonic()
        shown = ""
        while True:
            state = self.state()
            if state.runs:
                self.nodes = clients.node_names(state.nodes)
                return
            if never := state.why_never():
                raise NeverStarts(_with_partitions(f"job {self.job_id} can never start: {never}"))
            if not state.waits:
                why = gpu_ledger.why(self.job_id) or f"{state.state.lower()}, {state.reason}"
                raise InvalidJob(f"job {self.job_id} ended before it began: {why}")
            text = self._in_words(state)
            if on_state is not None and text != shown:
                on_state(State("queued", text))
                shown = text
            # the controller serves everybody: the longer the queue, the less often it is queried
            time.sleep(min(_MOST_SECONDS_BETWEEN_LOOKS, 0.2 + (time.monotonic() - began) / 10))

    def _in_words(self, state: clients.JobState) -> str:
        """`job 17 waits: Priority, other jobs come first; about 3rd in the queue; may start at 14:05`."""
        if not (why := state.why_it_waits()):
            return f"job {self.job_id} is submitted"
        parts = [f"job {self.job_id} waits: {why}"]
        place = clients.place_in_queue(self.job_id, state.partition) if state.state == "PENDING" else 0
        if place:
            parts.append(f"about {_ordinal(place)} in the queue")
        if state.start not in ("", "N/A"):
            today = time.strftime("%Y-%m-%dT")
            parts.append(f"may start at {state.start.removeprefix(today).replace('T', ' ')}")
        if gpus := gpu_ledger.in_words():
            parts.append(gpus)
        return "; ".join(parts)

    def release(self) -> None:
        """Cancel the job, and wait until Slurm knows it. Calling it twice is harmless."""
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError):
            self._guard.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it goes on trying
            self._guard.wait(_CANCEL_LIMIT_SECONDS)
        for pipe in (self._guard.stdout, self._guard.stderr):
            if pipe is not None:
                pipe.close()

    def forget_after_fork(self) -> None:
        """In a forked child: the job must end with the program that created it, not with this one."""
        assert self._guard.stdin is not None
        os.close(self._guard.stdin.fileno())


def _with_partitions(message: str) -> str:
    """Add the cluster's partitions, for a request that does not match them."""
    try:
        return f"{message}. This cluster has: {clients.partitions()}"
    except InvalidJob:  # Slurm does not answer, as the message already explains
        return message


def _ordinal(number: int) -> str:
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


_all: weakref.WeakSet[Allocation] = weakref.WeakSet()


def _after_fork() -> None:
    for allocation in list(_all):
        with contextlib.suppress(OSError, ValueError):  # released
            allocation.forget_after_fork()
    _all.clear()


os.register_at_fork(after_in_child=_after_fork)
