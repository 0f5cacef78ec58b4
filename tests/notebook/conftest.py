"""A real kernel with labkit loaded, as a notebook's front end uses it."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from announcing import WAITS
from clocks import ManualClock
from forkservers import environment
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager
from kernels import kernel_manager
from waiting import BROKEN_SECONDS


@dataclass
class Outputs:
    """Outputs of one cell, in the order of the kernel's messages."""

    messages: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    payload: list[dict[str, Any]] = field(default_factory=list)

    def stream(self, name: str) -> str:
        return "".join(c["text"] for kind, c in self.messages if kind == "stream" and c["name"] == name)

    @property
    def stdout(self) -> str:
        return self.stream("stdout")

    @property
    def stderr(self) -> str:
        return self.stream("stderr")

    @property
    def result(self) -> str:
        return next((c["data"]["text/plain"] for kind, c in self.messages if kind == "execute_result"), "")

    @property
    def displays(self) -> list[dict[str, Any]]:
        return [c["data"] for kind, c in self.messages if kind in ("display_data", "update_display_data")]

    @property
    def live(self) -> list[dict[str, Any]]:
        """Successive states of a run's display."""
        states = [c["data"].get("state", {}) for kind, c in self.messages if kind in ("comm_open", "comm_msg")]
        return [state["shown"] for state in states if "shown" in state]

    @property
    def error(self) -> str:
        """The displayed error, without colours."""
        shown = ("\n".join(c["traceback"]) for kind, c in self.messages if kind == "error")
        return re.sub(r"\x1b\[[0-9;]*m", "", next(shown, ""))

    @property
    def error_name(self) -> str:
        return next((c["ename"] for kind, c in self.messages if kind == "error"), "")


class Kernel:
    """Runs cells. `watched`: as JupyterLab requests them, with a viewer; else as nbclient does."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager, self._client = manager, client
        self._seen: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        """By request: messages that `wait_for_display` has read."""

    def run(self, cell: str, watched: bool = False) -> Outputs:
        return self.collect(self.start(cell, watched))

    @contextmanager
    def by(self, clock: ManualClock, statement: str) -> Iterator[None]:
        """Use `clock` in the kernel: by the statement, in which it has that name; `undo()` ends it."""
        self.run(f"import pickle\nclock = pickle.loads({pickle.dumps(clock)!r})\nfrom pytest import MonkeyPatch")
        self.run(f"patch = MonkeyPatch()\n{statement}")
        try:
            yield
        finally:
            self.run("patch.undo()")

    def start(self, cell: str, watched: bool = False) -> str:
        return self._client.execute(cell, allow_stdin=watched)

    def collect(self, request: str) -> Outputs:
        outputs = Outputs(self._seen.pop(request, []))
        while True:
            message = self._client.get_iopub_msg(timeout=BROKEN_SECONDS)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                break
            if kind != "status":
                outputs.messages.append((kind, content))
        reply = self._client.get_shell_msg(timeout=BROKEN_SECONDS)
        while reply["parent_header"].get("msg_id") != request:  # a late reply to an earlier request
            reply = self._client.get_shell_msg(timeout=BROKEN_SECONDS)
        outputs.payload = reply["content"].get("payload", [])
        return outputs

    def wait_for_display(self, request: str, pattern: str) -> None:
        """Return once the running cell shows text that matches `pattern`."""
        while True:
            message = self._client.get_iopub_msg(timeout=BROKEN_SECONDS)
            kind, content = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") == request:
                assert kind != "status" or content["execution_state"] != "idle", f"it has not shown {pattern}"
                if kind != "status":
                    self._seen.setdefault(request, []).append((kind, content))
                if re.search(pattern, str(content.get("data"))):  # of a display, or of a widget
                    return

    def wait_for_waits(self, request: str, ranks: int) -> None:
        """Return once so many ranks of the running cell, which is watched, have printed that they wait."""
        while _waiting(self._seen.get(request, [])) < ranks:
            self.wait_for_display(request, WAITS)

    def complete(self, text: str) -> list[str]:
        reply = self._client.complete(text, len(text), reply=True, timeout=BROKEN_SECONDS)
        return list(reply["content"]["matches"])


def _waiting(messages: list[tuple[str, dict[str, Any]]]) -> int:
    """Number of ranks whose line in the last state of a run's display says that they wait."""
    states = Outputs(messages).live
    labels = [label for label, text, _ in states[-1]["lines"] if text == WAITS] if states else []
    spans = re.findall(r"(\d+)(?:-(\d+))?", " ".join(labels))
    return sum(int(last or first) - int(first) + 1 for first, last in spans)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """One kernel for a module's tests, with an empty workspace."""
    folder: Path = tmp_path_factory.mktemp("course")
    manager = kernel_manager()
    manager.start_kernel(cwd=str(folder), env={**environment(), "LABKIT_WORKSPACE": str(folder / "workspace")})
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=BROKEN_SECONDS)
        started = Kernel(manager, client)
        assert started.run("%load_ext labkit").messages[-1][0] == "execute_input"
        yield started
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
