"""The Slurm cluster: ranks on the nodes of a job that Slurm has allocated to this notebook."""

from __future__ import annotations

import os
import shlex
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from labkit.clusters.agent import LaunchPlan, NodesConnection, NodesLost
from labkit.clusters.cluster import BatchState, OnOutput, OnState
from labkit.clusters.job import InvalidJob, Job
from labkit.clusters.live import rank as live_rank
from labkit.clusters.live.supervisor import LiveSupervisor
from labkit.clusters.local import rank as local_rank
from labkit.clusters.run import Run
from labkit.clusters.slurm import batch, clients
from labkit.clusters.slurm.allocation import Allocation
from labkit.clusters.slurm.held_nodes import HeldNodes
from labkit.clusters.slurm.script import ResourceRequest, job_script, step_command

_LEARNERS = ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")


class SlurmCluster:
    """Nodes of a Slurm cluster; created by `slurm`. Runs go one at a time."""

    kind = "slurm"

    def __init__(
        self,
        asked: ResourceRequest,
        keep: float,
        python: str,
        backend: str | None,
        timeout: float | None,
        allocate: Callable[[ResourceRequest], Allocation | batch.CurrentAllocation] = Allocation,
    ) -> None:
        self._asked = asked
        self._keep = keep
        self._python = python
        self._agent = [python, "-P", "-m", "labkit.clusters.agent"]
        self._backend = backend
        self._timeout = timeout
        self._allocate = allocate
        self._lock = threading.Lock()
        self._held: HeldNodes | None = None
        self._timer: threading.Timer | None = None

    @property
    def nnodes(self) -> int:
        return self._asked.nnodes

    @property
    def nproc_per_node(self) -> int:
        return self._asked.nproc_per_node

    def describe(self) -> str:
        """`slurm: 2 nodes of 4 ranks each, partition gpu; job 17 keeps node1, node2`."""
        request = self._asked
        text = f"slurm: {request.nnodes} node{'s' * (request.nnodes > 1)} of {request.nproc_per_node} ranks each"
        if request.gpus_per_node:
            text += f" and {request.gpus_per_node} GPU{'s' * (request.gpus_per_node > 1)}"
        text += f", partition {request.partition}" if request.partition else ""
        held = self._held
        return text + (f"; job {held.job_id} keeps {', '.join(held.names)}" if held else "")

    def require(self) -> None:
        """Raise `InvalidJob` if Slurm does not answer here."""
        clients.require_slurm()
        clients.partitions()

    def dry_run(self) -> str:
        """The job that would be submitted, and the command that would then be started on the first node."""
        step = shlex.join(step_command("JOB", 0, self._agent))
        return (
            f"# sbatch gets this script:\n{job_script(self._asked)}\n# and each node, here the first, this:\n{step}\n"
        )

    def srun_options(self, nnodes: int) -> list[str]:
        """Options for one process on each of `nnodes` nodes, which starts the ranks itself, as torchrun does."""
        request = replace(self._asked, nnodes=nnodes)
        left_out = ("--job-name", "--ntasks-per-node", "--cpus-per-task", "--no-requeue", "--no-kill", "--output")
        kept = [option for option in request.options() if not option.startswith(left_out)]
        cpus = request.cpus_per_task * request.nproc_per_node
        return [*kept, "--ntasks-per-node=1", f"--cpus-per-task={cpus}"]

    def submit(self, jobs: Sequence[Job], command: Sequence[str], name: str, output: Path, array: str | None) -> str:
        """Submit a job that runs `command` by Python on its first node, with nodes for each of `jobs`.

        See `BatchCluster.submit`.
        """
        requests = [self._asked_for(job) for job in jobs]
        most = {field: max(getattr(request, field) for request in requests) for field in ("nnodes", "nproc_per_node")}
        script = batch.batch_script(replace(self._asked, **most), [self._python, *command], name, output, array)
        return batch.submit(script)

    def in_batch_job(self) -> SlurmCluster:
        """This cluster, for a program that runs in a batch job: jobs run on the nodes of that one."""
        return SlurmCluster(
            self._asked, self._keep, self._python, self._backend, self._timeout, batch.CurrentAllocation
        )

    @staticmethod
    def batch_state(batch_id: str) -> BatchState:
        """State of a batch job. Raises `InvalidJob` if Slurm does not answer."""
        return batch.batch_state(batch_id)

    @staticmethod
    def cancel(batch_id: str) -> None:
        """End a batch job; return when it has ended. Raises `InvalidJob` if Slurm does not answer."""
        batch.cancel(batch_id)

    def run(self, job: Job, on_output: OnOutput | None = None, on_state: OnState | None = None) -> Run:
        """Run `job` on fresh ranks; see `Cluster.run`. Raises `InvalidJob` if Slurm does not allocate the nodes."""
        request = self._asked_for(job)
        with self._nodes_for(request, on_state) as held:
            return held.run(self._plan(job, request, held), on_output, on_state)

    def keep(self, job: Job, on_state: OnState | None = None) -> tuple[NodesConnection, list[list[int]]]:
        """Start live ranks, for `labkit.clusters.live`. The nodes are held as long as the connection to them is open.

        Raises `InvalidJob` if Slurm does not allocate the nodes.
        """
        request = self._asked_for(job)
        with self._nodes_for(request, on_state) as held:
            plan = replace(
                self._plan(job, request, held),
                entry=live_rank.ENTRY,
                supervisor=LiveSupervisor,
                commands=True,
                timeout=None,
            )
            connection = held.open(plan)
            connection.when_closed = lambda: self._connection_closed(held, connection)
            return connection, [hosted for node in range(plan.nnodes) for hosted in plan.ranks(node)]

    def _connection_closed(self, held: HeldNodes, connection: NodesConnection) -> None:
        with self._lock:
            held.connections.discard(connection)
            if self._held is held:
                if held.lost:
                    self._let_go()
                self._keep_or_let_go()

    @contextmanager
    def _nodes_for(self, request: ResourceRequest, on_state: OnState | None) -> Iterator[HeldNodes]:
        """Within the context, nodes for a run; afterwards they are kept for the time that `keep` allows."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            try:
                held = self._hold(request, on_state)
                yield held
                if held.lost:
                    self._let_go()
            except NodesLost as error:
                self._let_go()
                raise InvalidJob(str(error)) from None
            except BaseException:
                # after an interrupt, nodes that are to be kept are not released
                if self._held is not None and (self._held.lost or not self._held.ready):
                    self._let_go()
                raise
            finally:
                self._keep_or_let_go()

    def release(self) -> bool:
        """Release the nodes, if any are kept; False if there were none."""
        with self._lock:
            return self._let_go()

    def _asked_for(self, job: Job) -> ResourceRequest:
        nproc_per_node = job.nproc_per_node or self._asked.nproc_per_node
        if isinstance(nproc_per_node, str):
            gpus = self._asked.gpus_per_node
            if nproc_per_node == "cpu" or not gpus:
                raise InvalidJob(f"nproc_per_node={nproc_per_node}: on slurm, say how many, or --gpus-per-node")
            nproc_per_node = gpus
        request = replace(self._asked, nnodes=job.nnodes or self._asked.nnodes, nproc_per_node=nproc_per_node)
        if job.call is not None and (job.max_restarts or job.min_nnodes is not None):
            raise InvalidJob("a job that calls a function has arguments for each rank: its ranks cannot start again")
        if job.min_nnodes is not None and job.min_nnodes > request.nnodes:
            raise InvalidJob(f"at least {job.min_nnodes} nodes of at most {request.nnodes} cannot be had")
        if job.call is not None and len(job.arguments) != request.nnodes * nproc_per_node:
            raise InvalidJob(
                f"arguments for {len(job.arguments)} ranks, but {request.nnodes * nproc_per_node} are asked for"
            )
        return request

    def _hold(self, request: ResourceRequest, on_state: OnState | None) -> HeldNodes:
        if self._held is not None and (self._held.asked != request or self._held.lost):
            if self._held.connections:
                raise InvalidJob(
                    f"live ranks hold job {self._held.job_id}, which has other nodes than this needs: ask for the same "
                    "number of nodes and ranks, or give them back first with %ranks stop"
                )
            self._let_go()
        if self._held is None:
            allocation = self._allocate(request)
            try:
                allocation.wait(on_state)
                self._held = HeldNodes(allocation, self._agent)
            except BaseException:
                allocation.release()
                raise
            self._held.wait_until_ready(on_state)
        return self._held

    def _plan(self, job: Job, request: ResourceRequest, held: HeldNodes) -> LaunchPlan:
        return LaunchPlan(
            run=uuid.uuid4().hex,
            entry=local_rank.ENTRY,
            job=job,
            nnodes=request.nnodes,
            nproc_per_node=request.nproc_per_node,
            master_addr=held.address,
            master_port=held.ready[0].port,
            secret=held.ready[0].secret,
            backend=self._backend,
            timeout=job.timeout or self._timeout,
            environment={
                "OMP_NUM_THREADS": str(request.cpus_per_task),
                # the learner's own settings override the lab's
                **{name: os.environ[name] for name in _LEARNERS if name in os.environ},
                **held.changes(),
            },
            folder=os.getcwd(),
            path=list(sys.path),
        )

    def _keep_or_let_go(self) -> None:
        if self._held is None or self._held.connections:
            return
        if self._keep <= 0:
            self._let_go()
            return
        timer = threading.Timer(self._keep, lambda: self._let_go_unless_used(timer))
        timer.daemon = True
        self._timer = timer
        timer.start()

    def _let_go_unless_used(self, timer: threading.Timer) -> None:
        with self._lock:
            if self._timer is timer and not timer.finished.is_set():
                self._let_go()

    def _let_go(self) -> bool:
        held, self._held = self._held, None
        if held is not None:
            held.close()
        return held is not None


def slurm(
    nnodes: int = 1,
    nproc_per_node: int | None = None,
    *,
    partition: str | None = None,
    account: str | None = None,
    time: str | None = None,
    gpus_per_node: int | None = None,
    cpus_per_task: int = 1,
    qos: str | None = None,
    constraint: str | None = None,
    sbatch_options: Sequence[str] = (),
    keep: float = 0.0,
    python: str | None = None,
    backend: str | None = None,
    timeout: float | None = None,
) -> SlurmCluster:
    """Nodes of the Slurm cluster that this machine can submit jobs to.

    nproc_per_node: ranks on each node; None: the number of GPUs, or 1 without GPUs.
    partition, account, time, gpus_per_node, cpus_per_task, qos, constraint: sbatch's options. A task is a rank, and
        `cpus_per_task` its OMP_NUM_THREADS.
    sbatch_options: more of them: `["--reservation=course"]`.
    keep: seconds for which the nodes are kept for the next run; 0: every run is a job of its own.
    python: the interpreter on the nodes, with the lab installed; None: this one's path, on a shared file system.
    backend, timeout: see `local`.
    Raises `InvalidJob` for an invalid value, and if Slurm's commands are missing.
    """
    clients.require_slurm()
    if keep < 0:
        raise InvalidJob(f"keep must be 0 or more seconds, got {keep!r}")
    if timeout is not None and not timeout > 0:
        raise InvalidJob(f"timeout must be more than 0 seconds, got {timeout!r}")
    request = ResourceRequest(
        nnodes=nnodes,
        nproc_per_node=gpus_per_node or 1 if nproc_per_node is None else nproc_per_node,
        cpus_per_task=cpus_per_task,
        gpus_per_node=gpus_per_node,
        partition=partition,
        account=account,
        time=time,
        qos=qos,
        constraint=constraint,
        sbatch_options=tuple(sbatch_options),
    )
    return SlurmCluster(request, keep, python or sys.executable, backend, timeout)
