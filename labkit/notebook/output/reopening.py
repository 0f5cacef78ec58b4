"""A page that is opened while a run goes on: it finds the run's display, as if it had been open all the time.

JupyterLab asks the kernel what it is and which widgets it has before it draws any. A kernel whose main thread runs a
cell answers after the cell only, so meanwhile a subshell answers (a thread of ipykernel 7 that serves requests). This
is the one file that knows ipykernel from within; where that has changed, the display is found when the cell has ended.
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
    """While this lasts, a page that opens gets its answers, though the main thread is busy."""
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
    """Say so again, in the name of the running cell: when a subshell has answered, the page says `Idle`."""
    publish = getattr(getattr(shell, "kernel", None), "_publish_status", None)
    if publish is not None:
        publish("busy", "shell")


class _Helper:
    """Gives requests that name no subshell to one of its own while a run goes on."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._handle = kernel.shell_channel_thread_main
        self._manager = kernel.shell_channel_thread.manager
        self._subshell = ""
        self.runs = 0

    @classmethod
    def of(cls, kernel: Any) -> _Helper | None:
        """The one of this kernel; None where the kernel has no subshells, or others than expected."""
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
        """In the thread that reads the kernel's requests: handle one as ipykernel does, perhaps redirected."""
        if self.runs:
            try:
                message = self._redirected(message)
            except Exception:  # whatever it is, ipykernel knows what to say about it
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
