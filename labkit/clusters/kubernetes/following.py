"""Events of a run on the cluster, as one queue: pods that change, lines of their logs, errors.

Connections to a cluster break: after an hour, at a laptop's sleep, behind every second proxy. So each stream here is
resumed, from a little before the place where it was cut; the reader of the lines knows their numbers.
"""

from __future__ import annotations

import base64
import json
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.clusters.kubernetes import pods
from labkit.clusters.kubernetes.api import Api
from labkit.clusters.kubernetes.errors import ApiRefused, ApiUnreachable, KubernetesError
from labkit.clusters.kubernetes.manifest import ALIVE, Object

_PATIENCE_SECONDS = 300.0
"""Maximum time that the API may be out of reach during a run."""
_SILENCE_SECONDS = 90.0
"""Time without data after which a stream may be dead and is resumed."""
_WATCH_SECONDS = 240
_OVERLAP_SECONDS = 60.0
_PAUSE_SECONDS = 0.5
_NUMBER = re.compile(rb'"n": (\d+)')


@dataclass(frozen=True)
class PodChange:
    """A pod of the run, in its present state."""

    pod: Object


@dataclass(frozen=True)
class LogLine:
    """A line of a node's log; after a break, lines are repeated."""

    node: int
    text: str


@dataclass(frozen=True)
class LogEnd:
    """A node's log has been read to its end."""

    node: int


@dataclass(frozen=True)
class ApiTrouble:
    """The API is out of reach, or is back if `text` is empty."""

    text: str


@dataclass(frozen=True)
class RunGone:
    """A course's hub has ended the run, of which there may never have been a pod."""

    text: str


@dataclass(frozen=True)
class FollowFailure:
    """End of all events."""

    error: KubernetesError


Happening = PodChange | LogLine | LogEnd | ApiTrouble | RunGone | FollowFailure


class Follower:
    """Threads that watch one run; `happenings` is the queue of their events. Call `close` at the end."""

    def __init__(self, api: Api, selector: str, jobs: list[str]) -> None:
        """selector: labels of the run's pods. jobs: names of the Jobs that create them, whose events are read."""
        self.happenings: queue.Queue[Happening] = queue.Queue(maxsize=1000)
        self._api = api
        self._selector = selector
        self._jobs = jobs
        self._over = threading.Event()
        self._ended: dict[int, threading.Event] = {}
        self._start(self._watch_pods)
        self._start(self._read_events)

    def close(self) -> None:
        """Make the threads end, each at its next line or pause."""
        self._over.set()

    def follow_log(self, node: int, pod: str, container: str) -> None:
        """Read the log of a node's pod from now on. Further calls for the node have no effect."""
        if node not in self._ended:
            self._ended[node] = threading.Event()
            self._start(lambda: self._follow(node, pod, container))

    def pod_ended(self, node: int) -> None:
        """Record that the log of this node will not grow any more."""
        if node in self._ended:
            self._ended[node].set()

    def keep_alive(self, secret: str, seconds: float) -> None:
        """Show the pods at regular intervals that the notebook still waits for them."""
        self._start(lambda: self._beat(secret, seconds))

    def _start(self, work: Callable[[], None]) -> None:
        def safely() -> None:
            try:
                work()
            except KubernetesError as error:
                self._tell(FollowFailure(error))
            except Exception as error:  # otherwise the run would wait for a thread that no longer exists
                self._tell(FollowFailure(KubernetesError(f"following the run failed: {type(error).__name__}: {error}")))

        threading.Thread(target=safely, name="labkit-kubernetes", daemon=True).start()

    def _tell(self, happening: Happening) -> None:
        while not self._over.is_set():
            try:
                return self.happenings.put(happening, timeout=1)
            except queue.Full:  # the reader is slow, so the log waits
                continue

    def _watch_pods(self) -> None:
        path, known = self._api.path("v1", "pods"), dict[str, Object]()
        patience = _Patience(self._tell)
        while not self._over.is_set():
            try:
                answer = self._api.get(path, labelSelector=self._selector)
                patience.is_well()
                present = {pod["metadata"]["uid"]: pod for pod in answer["items"]}
                for uid in known.keys() - present.keys():
                    self._tell(PodChange(_gone(known[uid])))
                for pod in present.values():
                    self._tell(PodChange(pod))
                known = present
                self._watch(path, answer["metadata"]["resourceVersion"], known)
            except ApiUnreachable as error:
                patience.is_tried(error)
            except ApiRefused as error:
                if error.status != 410:  # that version is too old: everything is listed again
                    raise
            self._over.wait(_PAUSE_SECONDS)

    def _watch(self, path: str, version: str, known: dict[str, Object]) -> None:
        query = {
            "labelSelector": self._selector,
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_SECONDS),
            "watch": "true",
        }
        with self._api.lines(path, _WATCH_SECONDS + _SILENCE_SECONDS, **query) as lines:
            for line in lines:
                if self._over.is_set():
                    return
                event = json.loads(line)
                pod = event["object"]
                if event["type"] == "ERROR":  # that version is too old: everything is listed again
                    return
                if event["type"] == "DELETED":
                    known.pop(pod["metadata"]["uid"], None)
                    pod = _gone(pod)
                else:
                    known[pod["metadata"]["uid"]] = pod
                self._tell(PodChange(pod))

    def _read_events(self) -> None:
        """Read the Job's events, the only place with the reason why no pods are created."""
        path, pause = self._api.path("v1", "events"), _PAUSE_SECONDS
        while not self._over.wait(pause):
            for job in self._jobs:
                try:
                    answer = self._api.get(path, fieldSelector=f"involvedObject.name={job}")
                except ApiUnreachable:
                    continue
                except ApiRefused as error:  # users without access to events get fewer messages
                    return self._tell(RunGone(str(error))) if error.status == 404 else None
                if reason := pods.refusal(answer["items"]):
                    raise KubernetesError(f"the cluster makes no pods for this run: {reason}")
            pause = min(2 * pause, 10.0)

    def _follow(self, node: int, pod: str, container: str) -> None:
        path, ended = self._api.path("v1", "pods", pod) + "/log", self._ended[node]
        query = {"container": container, "follow": "true"}
        patience = _Patience(self._tell)
        last, last_came = -1, time.monotonic()
        while not self._over.is_set():
            was_ended, taken_up = ended.is_set(), "sinceSeconds" in query
            try:
                with self._api.lines(path, _SILENCE_SECONDS, **query) as lines:
                    patience.is_well()
                    for line in lines:
                        if self._over.is_set():
                            return
                        number = _number(line)
                        if taken_up and number > last + 1:
                            # not far enough back: again from the beginning
                            del query["sinceSeconds"]
                            break
                        taken_up = taken_up and number < 0
                        last, last_came = max(last, number), time.monotonic()
                        self._tell(LogLine(node, line.decode(errors="replace")))
                    else:
                        if was_ended:
                            return self._tell(LogEnd(node))
                        query["sinceSeconds"] = ""
            except ApiUnreachable as error:
                patience.is_tried(error)
                query["sinceSeconds"] = ""
            except ApiRefused as error:
                if error.status == 404 or was_ended:
                    return self._tell(LogEnd(node))
                if error.status != 400:  # its container is being created
                    raise
            ended.wait(_PAUSE_SECONDS)
            if "sinceSeconds" in query:
                # the cluster's clock differs from ours: seconds back from its own present
                query["sinceSeconds"] = str(round(time.monotonic() - last_came + _OVERLAP_SECONDS))

    def _beat(self, secret: str, seconds: float) -> None:
        path, beats = self._api.path("v1", "secrets", secret), 0
        while not self._over.wait(seconds):
            beats += 1
            data = {ALIVE: base64.b64encode(str(beats).encode()).decode()}
            try:
                self._api.patch(path, {"data": data})
            except ApiUnreachable:  # the next one may get through, and the pods are patient too
                continue


def _number(line: bytes) -> int:
    """The number of an agent's line; -1 if it has none."""
    match = _NUMBER.search(line, 0, 4096)
    return int(match[1]) if match and line.startswith(b'{"kind": ') else -1


class _Patience:
    """Tolerance for a broken connection."""

    def __init__(self, tell: Callable[[Happening], None]) -> None:
        self._tell = tell
        self._since: float | None = None
        self._reported = False

    def is_tried(self, error: ApiUnreachable) -> None:
        """Raises `error` if it has lasted too long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elif now - self._since > _PATIENCE_SECONDS:
            raise error
        elif not self._reported:  # a stream that breaks once is not reported
            self._reported = True
            self._tell(ApiTrouble(str(error)))

    def is_well(self) -> None:
        if self._reported:
            self._tell(ApiTrouble(""))
        self._since, self._reported = None, False


def _gone(pod: Mapping[str, Any]) -> Object:
    metadata = {**pod["metadata"], "deletionTimestamp": pod["metadata"].get("deletionTimestamp") or "now"}
    return {**pod, "metadata": metadata}
