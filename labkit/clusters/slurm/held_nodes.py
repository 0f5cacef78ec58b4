"""Allocated nodes with the lab's agent on each: what jobs run on, one after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence

from labkit.clusters import gpu_ledger
from labkit.clusters.agent import LaunchPlan, NodeInfo, Nodes, NodesConnection, open_connection
from labkit.clusters.cluster import OnOutput, OnState, State
from labkit.clusters.job import InvalidJob
from labkit.clusters.run import Run
from labkit.clusters.slurm import batch, clients
from labkit.clusters.slurm.allocation import Allocation
from labkit.clusters.slurm.steps import Step, Steps

_READY_LIMIT_SECONDS = 300.0
"""Time to read Python and torch from the nodes' file system, which may be slow."""
_ENDING_SECONDS = 5.0


class HeldNodes:
    """Allocated nodes, with an agent on each."""

    def __init__(self, allocation: Allocation | batch.CurrentAllocation, agent: Sequence[str]) -> None:
        self.asked = allocation.asked
        self.job_id = allocation.job_id
        self.names = allocation.nodes
        self.address = clients.node_address(self.names[0])
        self.ready: list[NodeInfo] = []
        self.lost = False
        self.connections: set[NodesConnection] = set()
        """Connections to live ranks on these nodes."""
        self._allocation = allocation
        self._environment = clients.environment()
        self._steps = Steps(self.job_id, self.names, [*agent, "--address", self.address])
        writers = [self._steps.writer(node) for node in range(len(self.names))]
        self._nodes = Nodes(self.names, writers)
        self._steps.begin(self._nodes.feed, self._on_end)

    def wait_until_ready(self, on_state: OnState | None) -> None:
        if on_state is not None:
            text = f"job {self.job_id} has {', '.join(self.names)}: Python starts there"
            gpus = gpu_ledger.in_words()
            on_state(State("starting", f"{text}; {gpus}" if gpus else text))
        self.ready = self._nodes.wait_until_ready(_READY_LIMIT_SECONDS, on_state)

    def changes(self) -> dict[str, str]:
        """Changes of the notebook's environment since the start of the agents, which have the old one."""
        now = clients.environment()
        return {name: value for name, value in now.items() if self._environment.get(name) != value}

    def run(self, plan: LaunchPlan, on_output: OnOutput | None, on_state: OnState | None) -> Run:
        return self._nodes.run(plan, on_output, on_state)

    def open(self, plan: LaunchPlan) -> NodesConnection:
        connection = open_connection(self._nodes, plan)
        self.connections.add(connection)
        return connection

    def close(self) -> None:
        for node in range(len(self.names)):
            self._nodes.lost(node, f"job {self.job_id} was given back")
        try:
            self._steps.close()
        finally:
            self._allocation.release()

    def _on_end(self, step: Step) -> None:
        self.lost = True
        self._nodes.lost(step.node, self._why(step))

    def _why(self, step: Step) -> str:
        """Why a step ended unexpectedly: Slurm's reason, if it has one."""
        limit = time.monotonic() + _ENDING_SECONDS
        try:
            while (state := self._allocation.state()).state == "COMPLETING" and time.monotonic() < limit:
                time.sleep(0.2)
            trouble = clients.node_troubles(step.name).get(step.name)
        except (InvalidJob, OSError) as error:
            return str(error)
        if trouble:
            return f"Slurm says that the node is {trouble}"
        if state.state in ("CANCELLED", "COMPLETING", "TIMEOUT") and (why := gpu_ledger.why(self.job_id)):
            return why
        if ending := state.why_it_ended(step.messages):
            return ending.format(job=self.job_id, limit=self.asked.time or "of the partition")
        return f"{clients.said(step.messages)} (srun ended with {step.process.returncode})"
