"""The cluster's API for the front: labkit's client, in threads. A stream keeps one from its first byte to its last."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from labkit.clusters.kubernetes.api import Answer, Api

_THREADS = 2000
"""Maximum requests at a time: each log that a cell follows is one."""
_WAIT_SECONDS = 5.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class Stream:
    """An answer that comes in parts."""

    status: int
    content_type: str
    parts: AsyncIterator[bytes]


class Cluster:
    """One namespace, as the hub's account. Used in one event loop."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._threads = ThreadPoolExecutor(_THREADS, "kubernetes")
        self._free = asyncio.Semaphore(_THREADS)
        self.path = api.path

    async def ask(self, method: str, path: str, body: object) -> tuple[int, bytes]:
        """Return status and body of an answer, whatever its status.

        Raises `ApiUnreachable`, and TimeoutError if too many requests are under way.
        """

        def whole() -> tuple[int, bytes]:
            with contextlib.closing(self._api.send(method, path, body=body)) as answer:
                return answer.status, answer.read()

        async with self._thread():
            return await self._call(whole)

    @contextlib.asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str], seconds: float) -> AsyncIterator[Stream]:
        """Ask for what comes in parts. The end of the `with` block, or its cancellation, ends the connection.

        seconds: how long to wait for each part.
        Raises as `ask` does, as do the parts.
        """
        async with self._thread():
            answer = await self._call(lambda: self._api.send("GET", path, query, seconds=seconds), Answer.close)
            try:
                yield Stream(answer.status, answer.content_type, self._parts(answer))
            finally:
                answer.close()

    async def _parts(self, answer: Answer) -> AsyncIterator[bytes]:
        while data := await self._call(answer.part, interrupt=answer.close):
            yield data

    @contextlib.asynccontextmanager
    async def _thread(self) -> AsyncIterator[None]:
        async with asyncio.timeout(_WAIT_SECONDS):
            await self._free.acquire()
        try:
            yield
        finally:
            self._free.release()

    async def _call(
        self,
        function: Callable[[], _T],
        discard: Callable[[_T], None] = lambda _: None,
        interrupt: Callable[[], None] = lambda: None,
    ) -> _T:
        """Call a function in a thread. A cancelled call ends when its thread is free again, so that nobody has two.

        discard: what to do with the result of a cancelled call. interrupt: what ends a call early.
        """
        call = asyncio.get_running_loop().run_in_executor(self._threads, function)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            interrupt()
            await asyncio.wait([call])
            if call.exception() is None:
                discard(call.result())
            raise
