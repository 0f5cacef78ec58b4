"""The cluster's API, as the hub's account."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from autograder.classroom.gpus.jobs import SchedulerFailed
from autograder.classroom.kubernetes_api import log_in

_CONNECTIONS = 2000
"""Maximum open connections: each log that a cell follows is one."""
_CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 30.0
_MERGE_PATCH = "application/merge-patch+json"


class Cluster:
    """One namespace. Made in a running event loop, and used there; `ask_from_thread` is for other threads."""

    def __init__(self, client: Any, own: Any, namespace: str) -> None:
        """client, own: `ApiClient` for learners' requests, and one for the hub's own, which must never wait."""
        self._client, self._own = client, own
        self._loop = asyncio.get_running_loop()
        self.namespace = namespace

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, namespace: str) -> AsyncIterator[Cluster]:
        """Log in as the hub."""
        from kubernetes_asyncio import client

        configuration = client.Configuration()
        await log_in(configuration)
        configuration.connection_pool_maxsize = _CONNECTIONS
        async with client.ApiClient(configuration) as api, client.ApiClient(configuration) as own:
            yield cls(api, own, namespace)

    async def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        seconds: float | None = ANSWER_SECONDS,
    ) -> Any:
        """Return aiohttp's response, whatever its status; close it. path: `/api/v1/...`; seconds: None: no limit."""
        return await self._send(self._client, method, path, query, body, seconds)

    async def _send(
        self,
        client: Any,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: object,
        seconds: float | None,
    ) -> Any:
        from aiohttp import ClientTimeout

        content = _MERGE_PATCH if method == "PATCH" else "application/json"
        headers = {"Accept": "application/json", "Content-Type": content}
        await client.update_params_for_auth(headers, [], ["BearerToken"])
        return await client.rest_client.request(
            method,
            client.configuration.host + path,
            query_params=list((query or {}).items()),
            headers=headers,
            body=body,
            _preload_content=False,
            _request_timeout=ClientTimeout(total=seconds, connect=_CONNECT_SECONDS),
        )

    def path(self, group: str, plural: str, name: str = "") -> str:
        """Return the path of objects. group: `api/v1`."""
        return f"/{group}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def ask_from_thread(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None
    ) -> Any:
        """Return the answer; an object that is gone already counts as deleted. Raises `SchedulerFailed`."""
        from aiohttp import ClientError

        async def ask() -> tuple[int, bytes]:
            async with await self._send(self._own, method, path, query, body, ANSWER_SECONDS) as response:
                return response.status, await response.read()

        try:
            status, answer = asyncio.run_coroutine_threadsafe(ask(), self._loop).result()
        except (ClientError, OSError, TimeoutError) as problem:
            raise SchedulerFailed(f"the API of Kubernetes: {type(problem).__name__}: {problem}") from None
        if status >= 400 and not (method == "DELETE" and status == 404):
            raise SchedulerFailed(f"the API of Kubernetes: {answer.decode(errors='replace')[:500]}")
        return json.loads(answer)
