"""One node's elastic agent: torch's own, in a process of its own. It meets those of other nodes by c10d rendezvous.

Its process may have threads and handles signals as torchrun's does; the node forks the ranks, not the agent.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerGroup, WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, PContext, SignalException
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from labkit.clusters.elastic.attempts import TOLD_TO_END
from labkit.clusters.elastic.workers import ForkedWorkers, NodeConnection
from labkit.clusters.forkserver.entry import Entry, Reporter
from labkit.clusters.forkserver.rank_process import shared_file
from labkit.clusters.job import Job
from labkit.clusters.run_store import RunStore, StoreAddress
from labkit.torch_versions.agents import ObservedAgent, poll_rendezvous_every, start_workers_with
from labkit.torch_versions.stores import FileStore, Store, wait_for

_MONITOR_SECONDS = 0.02
_POLL_SECONDS = 0.05
_KEEP_ALIVE_SECONDS = 1
_MISSED_KEEP_ALIVES = 3
_LAST_CALL = timedelta(seconds=1)
_ASSEMBLY = timedelta(seconds=10)
"""Maximum time that nodes which start together wait for the slowest. A busy machine may need more than `_LAST_CALL`."""


def main(job: Job, index: int, options: Mapping[str, Any], reporter: Reporter, sock: socket.socket | None) -> None:
    """Run the agent until its ranks have ended for good.

    options["elastic"]: `min_nnodes`, `nnodes`, `nproc_per_node`, `max_restarts`, `run_id`; `nodes_at_start`,
    those that start together; `address`, this node's own.
    options["master"]: location of the store that all nodes share, as in labkit.clusters.local.rank; None when all nodes
    are on this machine and share an open file.
    """
    assert sock is not None
    settings = options["elastic"]
    # called for every event, and a resolver that does not answer takes seconds
    socket.getfqdn = lambda name="": name or settings["address"]
    # otherwise each agent opens a port for its ranks' store, on all interfaces; the ranks have a store of their own
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    store = _store(options["master"])
    _assemble(store, settings["nodes_at_start"])
    handler = DynamicRendezvousHandler.from_backend(
        settings["run_id"],
        store,
        # heartbeats must get through during other waits at the store: a connection serves one request at a time
        C10dRendezvousBackend(_store(options["master"]), settings["run_id"]),
        settings["min_nnodes"],
        settings["nnodes"],
        settings["address"],
        RendezvousTimeout(last_call=_LAST_CALL),
        keep_alive_interval=_KEEP_ALIVE_SECONDS,
        keep_alive_max_attempt=_MISSED_KEEP_ALIVES,
    )
    poll_rendezvous_every(_POLL_SECONDS, handler)
    spec = WorkerSpec(
        role="default",
        local_world_size=settings["nproc_per_node"],
        entrypoint=job.filename,
        rdzv_handler=handler,
        max_restarts=settings["max_restarts"],
        monitor_interval=_MONITOR_SECONDS,
        local_addr=settings["address"],
    )
    try:
        _Agent(spec, NodeConnection(sock), store, options["master"] is not None).run()
    except SignalException:
        # others may go on without this node: the rendezvous stays open
        os._exit(TOLD_TO_END)
    except RendezvousClosedError:
        # the job is over: another node has failed for good
        pass
    except RendezvousError as error:
        reporter.note(f"a node did not find the others: {error or type(error).__name__}")
        handler.shutdown()
        os._exit(1)
    handler.shutdown()


ENTRY = Entry(main)


class _NoLogs(DefaultLogsSpecs):
    """Output goes to the node. torch's own way to keep no logs still has threads that follow files that never grow."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        destinations = super().reify(envs)
        destinations.tee_stdouts.clear()
        destinations.tee_stderrs.clear()
        return destinations


class _Agent(ObservedAgent):
    """torch's agent, except that the node forks the ranks that it starts."""

    def __init__(self, spec: WorkerSpec, node_connection: NodeConnection, store: Store, own_clock: bool) -> None:
        """own_clock: other nodes are other machines, whose clocks cannot be compared."""
        super().__init__(spec, _NoLogs(log_dir=os.devnull))
        self._node_connection = node_connection
        self._agents_store = store
        self._own_clock = own_clock
        self._attempt: dict[str, Any] = {}
        start_workers_with(self._start_forked)

    def workers_start(self, worker_group: WorkerGroup) -> None:
        # a number that is the same on all nodes and different for each start: their restart counts may differ
        own: Any = worker_group.store
        if worker_group.group_rank == 0:
            number = self._agents_store.add("labkit/attempts", 1)
            own.set("labkit/attempt", json.dumps({"attempt": number, "began": time.monotonic()}))
        self._attempt = json.loads(own.get("labkit/attempt"))
        if self._own_clock:
            self._attempt["began"] = time.monotonic()

    def _start_forked(self, **started: Any) -> PContext:
        workers = ForkedWorkers(self._node_connection, self._attempt, **started)
        workers.start()
        return workers

    def workers_restart(self) -> None:
        self._node_connection.send({"kind": "restarting"})


def _assemble(store: Store, nodes: int) -> None:
    """Return when `nodes` nodes have arrived here, or after `_ASSEMBLY`: a lost one must not hold up the others."""
    if store.add("labkit/nodes", 1) < nodes:
        wait_for(store, ["labkit/assembled"], _ASSEMBLY)
    store.set("labkit/assembled", "")


def _store(master: StoreAddress | None) -> Store:
    if master is None:
        return FileStore(shared_file())
    return RunStore(replace(master, run=f"{master.run}/agents"))
