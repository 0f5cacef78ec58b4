"""A node: the supervisor of its agent's ranks. If it is killed, all of them die, as with a real node."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import socket
from typing import Any

from labkit.clusters.elastic import agent
from labkit.clusters.elastic.workers import NodeConnection
from labkit.clusters.forkserver.child_process import ChildProcess
from labkit.clusters.forkserver.request import Request
from labkit.clusters.forkserver.supervisor import Supervisor
from labkit.linux import processes

_PATIENCE_SECONDS = 5.0
"""Time for ranks to end after SIGTERM, once the node itself has received one."""


class Node(Supervisor):
    """Starts the agent, then the ranks that it requests. The agent is a request's last process, ranks are the others.

    Instead of the first socket it gets a file that all nodes of this machine share.
    """

    def __init__(self, connection: socket.socket, asked: Request) -> None:
        super().__init__(connection, asked)
        self._agent = len(asked.ranks) - 1
        ours, self._theirs = socket.socketpair()
        self._agent_connection = NodeConnection(ours)

    def _begin(self, sockets: list[int]) -> None:
        if sockets:
            os.close(self._shared)
            self._shared = sockets[0]
        request = dataclasses.replace(self._asked, entry=agent.ENTRY, commands=False)
        self._start(request, self._agent, self._theirs.fileno())
        self._theirs.close()
        self._selector.register(self._agent_connection.connection, selectors.EVENT_READ, self._hear_agent)

    def _hear_agent(self) -> None:
        heard = self._agent_connection.receive()
        if heard is None:
            self._selector.unregister(self._agent_connection.connection)
            return
        for header, payload in heard:
            if header["kind"] == "start":
                self._began = header["began"]
                self._start_ranks(header["attempt"], json.loads(payload))
            elif header["kind"] == "signal":
                self._told_to_end = True
                for process in self._running_ranks():
                    os.kill(process.pid, header["signal"])
            elif header["kind"] == "restarting":
                self._send({"kind": "restarting"})

    def _obey(self, header: dict[str, Any], payload: bytes) -> None:
        """Handle one more request: restart the ranks of an attempt."""
        if header["kind"] != "restart":
            super()._obey(header, payload)
            return
        with contextlib.suppress(OSError):  # the agent has ended
            self._agent_connection.send(header)

    def _start_ranks(self, attempt: int, environments: list[dict[str, str]]) -> None:
        # processes that the previous ranks have left behind, such as data workers
        processes.kill_children_except({self._processes[self._agent].pid})
        for index in range(self._agent):
            self._forget(index)
        first = environments[0]
        self._told_to_end = False
        self._send(
            {
                "kind": "attempt",
                "attempt": attempt,
                "restarts": int(first["TORCHELASTIC_RESTART_COUNT"]),
                "first_rank": int(first["RANK"]),
                "world_size": int(first["WORLD_SIZE"]),
                "nnodes": int(first["GROUP_WORLD_SIZE"]),
            }
        )
        options: dict[str, Any] = {
            **self._asked.options,
            "attempt": attempt,
            "first_rank": int(first["RANK"]),
            "world_size": int(first["WORLD_SIZE"]),
        }
        together = [{**own, **common} for own, common in zip(environments, self._asked.environments, strict=False)]
        request = dataclasses.replace(self._asked, options=options, environments=together)
        for index in range(self._agent):
            self._start(request, index, None)
        pids = [self._processes[index].pid for index in range(self._agent)]
        self._agent_connection.send({"kind": "started", "pids": pids})

    def _forget(self, index: int) -> None:
        """Remove a process that has ended, so that another can take its place."""
        process = self._processes.pop(index, None)
        if process is None:
            return
        for descriptor in process.streams:
            if self._reading:
                self._selector.unregister(descriptor)
            os.close(descriptor)
        if process.commands is not None:
            if process.commands in self._selector.get_map():
                self._selector.unregister(process.commands)
            os.close(process.commands)
        os.close(process.stacks)

    def _running_ranks(self) -> list[ChildProcess]:
        return [p for index, p in self._processes.items() if index != self._agent and p.status is None]

    def _process_ended(self, process: ChildProcess, status: int) -> None:
        if process.index == self._agent:
            self._send({"kind": "exit", "process": process.index, "status": status})
            if self._running_ranks():
                self._deadlines["the agent has ended"] = self._clock()
            return
        self._say_exit(process, self._own_status(status))
        try:
            self._agent_connection.send({"kind": "exit", "local_rank": process.index, "status": status})
        except OSError:  # the agent has been killed, and its exit is about to be reported
            return

    def _terminate(self, *_: object) -> None:
        """Pass SIGTERM on to the ranks, which then have time to save their state, as torchrun does."""
        agent = self._processes.get(self._agent)
        if agent is None or agent.status is not None or "terminated" in self._deadlines:
            super()._terminate()
            return
        self._deadlines["terminated"] = self._clock() + _PATIENCE_SECONDS
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(agent.pid, signal.SIGTERM)
