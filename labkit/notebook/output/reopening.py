"""Let a page that is opened during a run show the run's display, as if it had been open from the start.

Before it draws widgets, JupyterLab requests the kernel's info and its list of widgets. A kernel whose main thread runs
a cell replies only after the cell, so meanwhile a subshell (a thread of ipykernel 7) replies. Only this file depends on
ipykernel's internals; if those change, the display appears when the cell has ended.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import zmq

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_ASKED = {"kernel_info_request", "comm_info_request", "comm_open", "comm_msg", "comm_close"}


@contextmanager
def answering(shell: InteractiveShell) -> Iterator[None]:
    """In this context, a page that opens gets replies although the main thread is busy."""
    helper = _Helper.of(getattr(shell, "kernel", None))
    if helper is None:
        yield
        return
    helper.runs += 1
    try:
        yield
    finally:
        helper.runs -= 1


def still_busy(shell: InteractiveShell) -> None:
    """Publish the busy status again for the running cell: after a subshell's reply, the page shows `Idle`."""
    publish = getattr(getattr(shell, "kernel", None), "_publish_status", None)
    if publish is not None:
        publish("busy", "shell")


class _Helper:
    """Redirects requests without a subshell to its own subshell during a run."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._handle = kernel.shell_channel_thread_main
        self._manager = kernel.shell_channel_thread.manager
        self._subshell = ""
        self.runs = 0

    @classmethod
    def of(cls, kernel: Any) -> _Helper | None:
        """The helper of this kernel; None if the kernel has no subshells, or unexpected ones."""
        if not getattr(kernel, "_supports_kernel_subshells", False):
            return None
        helper = getattr(kernel, "_labkit_helper", None)
        if helper is None:
            try:
                helper = kernel._labkit_helper = cls(kernel)
                loop, stream = kernel.shell_channel_thread.io_loop, kernel.shell_stream
                loop.add_callback(stream.on_recv, helper.receive, copy=False)
            except AttributeError:
                return None
        assert isinstance(helper, _Helper)
        return helper

    async def receive(self, message: list[zmq.Message]) -> None:
        """Handle a request as ipykernel does, redirected if needed; runs in the thread that reads requests."""
        if self.runs:
            try:
                message = self._redirected(message)
            except Exception:  # leave it to ipykernel to report
                self._kernel.log.debug("not redirected", exc_info=True)
        await self._handle(message)

    def _redirected(self, message: list[zmq.Message]) -> list[zmq.Message]:
        session = self._kernel.session
        identities, frames = session.feed_identities(message, copy=False)
        signature, *parts = (frame.bytes for frame in frames[:5])
        header = session.unpack(parts[0])
        genuine = hmac.compare_digest(session.sign(parts), signature)
        if not genuine or header["msg_type"] not in _ASKED or header.get("subshell_id"):
            return message
        if self._subshell not in self._manager.list_subshell():
            self._subshell = self._manager._create_subshell()
        parts[0] = session.pack({**header, "subshell_id": self._subshell})
        changed = [*identities, b"<IDS|MSG>", session.sign(parts), *parts]
        return [*map(zmq.Message, changed), *frames[5:]]
