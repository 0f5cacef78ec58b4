"""A narrow front of the cluster's API: it passes on what labkit's client needs for its own runs, and nothing else.

The token of the learner's server identifies the user; a run's name belongs to the user who made it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from tornado import web
from tornado.iostream import StreamClosedError

from autograder.classroom import configured
from autograder.classroom.gpus import rules
from autograder.classroom.gpus.gpu_page import ForCells
from autograder.classroom.gpus.jobs import SchedulerFailed
from autograder.classroom.gpus.kubernetes import shapes
from autograder.classroom.gpus.kubernetes.cluster import Cluster
from autograder.classroom.gpus.kubernetes.runs import Runs
from autograder.classroom.gpus.kubernetes.shapes import API_VERSIONS, RUN, OtherShape
from autograder.classroom.gpus.kubernetes.turns import TooMany, Turns
from autograder.classroom.site import GpuPods
from labkit.clusters.kubernetes.api import ANSWER_SECONDS
from labkit.clusters.kubernetes.errors import ApiUnreachable
from labkit.clusters.kubernetes.manifest import CONTAINER, WAIT_LIMIT_SECONDS

_POLICIES = "networking.k8s.io/v1"
_REVIEW = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
MOST_RUNS, _MOST_STREAMS = 16, 100
"""Limits of one learner at a time: each run has three objects in the cluster, each stream is a connection."""
_MOST_A_DAY, _DAY_SECONDS = 2000, 86400
"""Runs that one learner may begin: each leaves a row in the table."""
_SPARE_SECONDS = 3600
_SILENCE_SECONDS = 600.0
"""Maximum silence of a log or a watch. labkit's client asks again much earlier."""


class Front(ForCells):
    """Handles requests in the form of the cluster's API; answers and errors have its form, too."""

    _streams: ClassVar[Counter[str]] = Counter()
    """Number of open streams, by user."""

    def initialize(self, classroom: configured.Classroom) -> None:
        """Read the settings `cluster`, `runs`, `turns`, `pods`, and `template`, the course's pod template."""
        super().initialize(classroom)
        self._cluster: Cluster = self.settings["cluster"]
        self._runs: Runs = self.settings["runs"]
        self._turns: Turns = self.settings["turns"]
        self._pods: GpuPods = self.settings["pods"]
        self._streaming: asyncio.Task[Any] | None = None

    def on_connection_close(self) -> None:
        """End a stream that nobody reads."""
        if self._streaming is not None:
            self._streaming.cancel()

    async def get(self, path: str) -> None:
        """Answer with the pods of a run and their changes, a pod's log, events of a run, or the cluster's version."""
        pods, events = (self._cluster.path("v1", plural)[1:] for plural in ("pods", "events"))
        query = {name: self.get_query_argument(name) for name in self.request.query_arguments}
        if path == "version":
            await self._pass_on("/version")
        elif path == pods:
            run = self._own(rf"job-name=({RUN})", query.pop("labelSelector", ""))
            kept = _only(query, watch="true", resourceVersion="[0-9]*", timeoutSeconds="[0-9]{1,5}")
            kept["labelSelector"] = f"job-name={run},{shapes.USER_LABEL}={shapes.label(self.user)}"
            await self._pass_on(f"/{path}", kept)
        elif path.startswith(f"{pods}/"):
            self._own(rf"{re.escape(pods)}/({RUN})-[0-9]+-[a-z0-9]+/log", path)
            kept = _only(query, container=CONTAINER, follow="true", sinceSeconds="[0-9]{1,9}")
            await self._pass_on(f"/{path}", {**kept, "container": CONTAINER})
        elif path == events:
            run = self._own(rf"involvedObject\.name=({RUN})", query.pop("fieldSelector", ""))
            self._require_left(run)
            await self._pass_on(f"/{path}", {**_only(query), "fieldSelector": f"involvedObject.name={run}"})
        else:
            raise _nothing_else()

    async def post(self, path: str) -> None:
        """Create a part of a run. Its Secret comes first, and makes the run the learner's."""
        if path == _REVIEW:
            return self._review()
        async with self._turn():
            await self._make(path)

    async def _make(self, path: str) -> None:
        plural = next(
            (each for each, version in API_VERSIONS.items() if path == self._cluster.path(version, each)[1:]), ""
        )
        if not plural:
            raise _nothing_else()
        sent, user = self._body(), self.user
        try:
            if plural == "secrets":
                made = shapes.secret(sent, user, self._pods)
            elif plural == "services":
                made = shapes.service(sent, user, self._pods)
            else:
                run = shapes.job(
                    sent, user, self._pods, 60 * self.watch.limits.longest_minutes, self.settings["template"]
                )
                self._limit(run)
                made = run.job
        except OtherShape as problem:
            raise _not_passed_on(problem) from None
        name = made["metadata"]["name"]
        if plural == "secrets":
            await self._begin(name)
        else:
            self._require_left(self._own(f"({RUN})", name))
        if plural == "jobs":
            # the ledger and the stop button identify a run by its name
            if not self._runs.begin_job(name):
                raise web.HTTPError(409, f"the Job of the run {name} was made before")
            await self._keep_apart()
        status, answer = await self._ask("POST", f"/{path}", made)
        if plural == "secrets" and status >= 300:
            self._runs.forget(name)
        self._answer(status, answer)

    async def patch(self, path: str) -> None:
        """Change a run's Secret or Service, as its client does."""
        plural, name = self._object(path)
        if plural == "jobs":
            raise _nothing_else()
        try:
            change = shapes.patch(self._body(), name, secret=plural == "secrets")
        except OtherShape as problem:
            raise _not_passed_on(problem) from None
        self._answer(*await self._ask("PATCH", f"/{path}", change))

    async def delete(self, path: str) -> None:
        """Delete a run, whichever part of it is named."""
        _, name = self._object(path)
        async with self._turn():
            self._require_left(name)
            # a short run may begin and end between two looks
            await self.watch.in_thread(self.watch.look)
            await self._end(name)
        self.finish({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for earlier changes of the learner's: a Job that is made while its run is deleted would stay."""
        try:
            async with self._turns.of(self.user):
                yield
        except TooMany:
            raise web.HTTPError(429, "too many of your runs begin or end: wait for some of them") from None

    async def _begin(self, name: str) -> None:
        """Take a name for a new run. Old runs that their notebooks could not delete are deleted."""
        now, user, runs = time.time(), self.user, self._runs
        longest = WAIT_LIMIT_SECONDS + 60 * self.watch.limits.longest_minutes + _SPARE_SECONDS
        for old, begun in runs.left(user).items():
            if begun + longest < now:
                await self._end(old)
        if len(runs.left(user)) >= MOST_RUNS:
            raise web.HTTPError(403, f"you have {MOST_RUNS} runs: interrupt some, or restart their kernels")
        if runs.begun(user, now - _DAY_SECONDS) >= _MOST_A_DAY:
            raise web.HTTPError(429, f"you have begun {_MOST_A_DAY} runs in a day: try again later")
        if not runs.begin(name, user, now):
            raise web.HTTPError(409, f"the name {name} was used before")

    async def _end(self, name: str) -> None:
        """Delete a run's objects. Raises `web.HTTPError` if one cannot be deleted: the run is then still there."""
        try:
            await self.watch.in_thread(self.watch.scheduler.cancel, name)
        except SchedulerFailed as problem:
            raise web.HTTPError(502, f"the run {name} could not be deleted: {problem}") from None

    def _require_left(self, name: str) -> None:
        """Raise `web.HTTPError` if a run is gone, with the reason if the hub has ended it."""
        if name not in self._runs.left(self.user):
            why = [notice.text for notice in self.watch.ledger.notices(self.user, time.time()) if notice.job == name]
            raise web.HTTPError(404, why[0] if why else f"the run {name} has ended")

    async def _keep_apart(self) -> None:
        """Let a learner's ranks talk to each other and to nobody else's; the policy stays."""
        path = self._cluster.path(_POLICIES, "networkpolicies")
        status, answer = await self._ask("POST", path, shapes.policy(self.user, self._pods))
        if status >= 300 and status != 409:
            text = answer.decode(errors="replace")[:500]
            raise web.HTTPError(502, f"the NetworkPolicy of your ranks could not be made: {text}")

    def _limit(self, run: shapes.Run) -> None:
        """Refuse a run beyond the learner's limits. Instructors' use is only counted."""
        watch, name = self.watch, run.job["metadata"]["name"]
        if self.user not in watch.learners:
            return
        ranks = max(run.nnodes, run.gpus)
        if ranks > watch.limits.most_ranks:
            raise web.HTTPError(403, f"job {name} was not begun: {rules.too_many(ranks, watch.limits)}")
        if run.gpus and watch.ledger.used(time.time()).get(self.user, 0) >= watch.limits.seconds_per_day:
            raise web.HTTPError(403, f"job {name} was not begun: {rules.used_up(watch.limits)}")

    def _review(self) -> None:
        """Answer which objects a learner may create; `labkit doctor` asks."""
        review = self._body()
        try:
            attributes = review["spec"]["resourceAttributes"]
            allowed = attributes["verb"] == "create" and attributes["resource"] in API_VERSIONS
        except (LookupError, TypeError):
            raise web.HTTPError(400, "this is no SelfSubjectAccessReview") from None
        self.set_status(201)
        self.finish({"kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}})

    def _object(self, path: str) -> tuple[str, str]:
        """Return kind and name of an own object. Raises `web.HTTPError`."""
        for plural, version in API_VERSIONS.items():
            if match := re.fullmatch(rf"{re.escape(self._cluster.path(version, plural)[1:])}/([^/]+)", path):
                return plural, self._own(f"({RUN})", match[1])
        raise _nothing_else()

    def _own(self, pattern: str, text: str) -> str:
        """Return the name of the learner's own run in `text`. Others' runs look like runs that do not exist."""
        match = re.fullmatch(pattern, text)
        if match is None:
            raise _nothing_else()
        if not self._runs.is_of(self.user, match[1]):
            raise web.HTTPError(404, f"you have no run {match[1]}")
        return match[1]

    def _body(self) -> Any:
        try:
            return json.loads(self.request.body)
        except (ValueError, RecursionError):
            raise web.HTTPError(400, "the body is not JSON") from None

    async def _ask(self, method: str, path: str, body: object) -> tuple[int, bytes]:
        """Return status and answer of the cluster. Raises `web.HTTPError` if it does not answer."""
        try:
            return await self._cluster.ask(method, path, body)
        except (ApiUnreachable, TimeoutError) as problem:
            raise _no_answer(problem) from None

    def _answer(self, status: int, answer: bytes) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(answer)

    async def _pass_on(self, path: str, query: dict[str, str] | None = None) -> None:
        """Answer with the cluster's answer, as it comes in."""
        streams = bool(query and (query.get("watch") or query.get("follow")))
        # this limits logs that are not followed, too: a slow reader keeps a connection open
        if self._streams[self.user] >= _MOST_STREAMS:
            raise web.HTTPError(429, f"you follow {_MOST_STREAMS} pods and logs: restart kernels that run no cell")
        self._streaming = asyncio.current_task()
        self._streams[self.user] += 1
        try:
            await self._stream(path, query, None if streams else ANSWER_SECONDS)
        except StreamClosedError:  # nobody reads it any more
            pass
        except asyncio.CancelledError:
            if not self._is_closed:
                raise
        finally:
            self._streaming = None
            self._streams[self.user] -= 1

    async def _stream(self, path: str, query: dict[str, str] | None, limit: float | None) -> None:
        begun = False
        try:
            async with (
                asyncio.timeout(limit),
                self._cluster.stream(path, query or {}, limit or _SILENCE_SECONDS) as stream,
            ):
                self.set_status(stream.status)
                self.set_header("Content-Type", stream.content_type)
                begun = True
                await self.flush()  # a client waits for this before the first line of a log
                async for data in stream.parts:
                    self.write(data)
                    await self.flush()
                await self.finish()
        except (ApiUnreachable, TimeoutError) as problem:
            if not begun:
                raise _no_answer(problem) from None
            # the client must see that a stream was cut
            self.request.connection.stream.close()  # type: ignore[union-attr]

    @property
    def _is_closed(self) -> bool:
        return bool(self.request.connection.stream.closed())  # type: ignore[union-attr]


def _only(query: dict[str, str], **allowed: str) -> dict[str, str]:
    """Return the query. Raises `web.HTTPError` for what is not in `allowed`, patterns by name."""
    for name, value in query.items():
        if name not in allowed or not re.fullmatch(allowed[name], value):
            raise _nothing_else()
    return query


def _nothing_else() -> web.HTTPError:
    return web.HTTPError(403, "the course's hub passes on what `%cluster kubernetes` asks for, and nothing else")


def _not_passed_on(problem: OtherShape) -> web.HTTPError:
    return web.HTTPError(422, f"the course's hub does not pass this on: {problem}")


def _no_answer(problem: Exception) -> web.HTTPError:
    why = problem.reason if isinstance(problem, ApiUnreachable) else type(problem).__name__
    return web.HTTPError(502, f"the cluster's API does not answer: {why}")
