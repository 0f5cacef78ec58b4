"""What happens to a run on the cluster, as one queue: pods that change, lines of their logs, what goes wrong.

Connections to a cluster break: after an hour, at a laptop's sleep, behind every second proxy. So each stream here is
one that is taken up again, from a little before the place where it was cut; who reads the lines knows their numbers.
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
from labkit.clusters.kubernetes.api import Api, KubernetesError, Refused, Unreachable
from labkit.clusters.kubernetes.manifest import ALIVE, Object

_PATIENCE_SECONDS = 300.0
"""So long the API may be out of reach while a run goes on."""
_SILENCE_SECONDS = 90.0
"""A stream that says nothing for so long may be dead: it is taken up again."""
_WATCH_SECONDS = 240
_OVERLAP_SECONDS = 60.0
_PAUSE_SECONDS = 0.5
_NUMBER = re.compile(rb'"n": (\d+)')


@dataclass(frozen=True)
class PodChanged:
    """A pod of the run, as it is now."""

    pod: Object


@dataclass(frozen=True)
class Line:
    """A line of a node's log; after a break, lines come again."""

    node: int
    text: str


@dataclass(frozen=True)
class LogEnded:
    """A node's log has been read to its end."""

    node: int


@dataclass(frozen=True)
class Trouble:
    """The API is out of reach, or is again when `text` is empty."""

    text: str


@dataclass(frozen=True)
class GivenUp:
    """Nothing more will come."""

    error: KubernetesError


Happening = PodChanged | Line | LogEnded | Trouble | GivenUp


class Follower:
    """Threads that watch one run; `happenings` is what they see. To be closed."""

    def __init__(self, api: Api, selector: str, jobs: list[str]) -> None:
        """selector: labels of the run's pods. jobs: names of the Jobs that make them, whose events are read."""
        self.happenings: queue.Queue[Happening] = queue.Queue(maxsize=1000)
        self._api = api
        self._selector = selector
        self._jobs = jobs
        self._over = threading.Event()
        self._ended: dict[int, threading.Event] = {}
        self._start(self._watch_pods)
        self._start(self._read_events)

    def close(self) -> None:
        """Have the threads end, each at its next line or pause."""
        self._over.set()

    def follow_log(self, node: int, pod: str, container: str) -> None:
        """Read the log of a node's pod from now on; once is enough."""
        if node not in self._ended:
            self._ended[node] = threading.Event()
            self._start(lambda: self._follow(node, pod, container))

    def pod_ended(self, node: int) -> None:
        """The log of this node will not grow any more."""
        if node in self._ended:
            self._ended[node].set()

    def keep_alive(self, secret: str, seconds: float) -> None:
        """Say every so often, where the pods can see it, that somebody still waits for them."""
        self._start(lambda: self._beat(secret, seconds))

    def _start(self, work: Callable[[], None]) -> None:
        def safely() -> None:
            try:
                work()
            except KubernetesError as error:
                self._tell(GivenUp(error))
            except Exception as error:  # else the run would wait for a thread that is no longer there
                self._tell(GivenUp(KubernetesError(f"following the run failed: {type(error).__name__}: {error}")))

        threading.Thread(target=safely, name="labkit-kubernetes", daemon=True).start()

    def _tell(self, happening: Happening) -> None:
        while not self._over.is_set():
            try:
                return self.happenings.put(happening, timeout=1)
            except queue.Full:  # the reader is slow: so is the log
                continue

    def _watch_pods(self) -> None:
        path, known = self._api.path("v1", "Pod"), dict[str, Object]()
        patience = _Patience(self._tell)
        while not self._over.is_set():
            try:
                answer = self._api.get(path, labelSelector=self._selector)
                patience.is_well()
                found = {pod["metadata"]["uid"]: pod for pod in answer["items"]}
                for uid in known.keys() - found.keys():
                    self._tell(PodChanged(_gone(known[uid])))
                for pod in found.values():
                    self._tell(PodChanged(pod))
                known = found
                self._watch(path, answer["metadata"]["resourceVersion"], known)
            except Unreachable as error:
                patience.is_tried(error)
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
                if event["type"] == "ERROR":  # that version is too old: all is listed anew
                    return
                if event["type"] == "DELETED":
                    known.pop(pod["metadata"]["uid"], None)
                    pod = _gone(pod)
                else:
                    known[pod["metadata"]["uid"]] = pod
                self._tell(PodChanged(pod))

    def _read_events(self) -> None:
        """Why no pods are made stands nowhere but in the Job's events."""
        path, pause = self._api.path("v1", "Event"), _PAUSE_SECONDS
        while not self._over.wait(pause):
            for job in self._jobs:
                try:
                    answer = self._api.get(path, fieldSelector=f"involvedObject.name={job}")
                except Unreachable:
                    continue
                except Refused:  # who may not read events is told less
                    return
                if reason := pods.refusal(answer["items"]):
                    raise KubernetesError(f"the cluster makes no pods for this run: {reason}")
            pause = min(2 * pause, 10.0)

    def _follow(self, node: int, pod: str, container: str) -> None:
        path, ended = self._api.path("v1", "Pod", pod) + "/log", self._ended[node]
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
                            # not far enough back: once more, from the beginning
                            del query["sinceSeconds"]
                            break
                        taken_up = taken_up and number < 0
                        last, last_came = max(last, number), time.monotonic()
                        self._tell(Line(node, line.decode(errors="replace")))
                    else:
                        if was_ended:
                            return self._tell(LogEnded(node))
                        query["sinceSeconds"] = ""
            except Unreachable as error:
                patience.is_tried(error)
                query["sinceSeconds"] = ""
            except Refused as error:
                if error.status == 404 or was_ended:
                    return self._tell(LogEnded(node))
                if error.status != 400:  # its container is being made
                    raise
            ended.wait(_PAUSE_SECONDS)
            if "sinceSeconds" in query:
                # the cluster's clock is not ours: seconds back from its own now
                query["sinceSeconds"] = str(round(time.monotonic() - last_came + _OVERLAP_SECONDS))

    def _beat(self, secret: str, seconds: float) -> None:
        path, beats = self._api.path("v1", "Secret", secret), 0
        while not self._over.wait(seconds):
            beats += 1
            data = {ALIVE: base64.b64encode(str(beats).encode()).decode()}
            try:
                self._api.patch(path, {"data": data})
            except Unreachable:  # the next one may get through; the pods are patient too
                continue


def _number(line: bytes) -> int:
    """The number of an agent's line; -1 when it has none."""
    found = _NUMBER.search(line, 0, 4096)
    return int(found[1]) if found and line.startswith(b'{"kind": ') else -1


class _Patience:
    """How long a broken connection is borne."""

    def __init__(self, tell: Callable[[Happening], None]) -> None:
        self._tell = tell
        self._since: float | None = None
        self._told = False

    def is_tried(self, error: Unreachable) -> None:
        """Raises `error` when it has gone on for too long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elif now - self._since > _PATIENCE_SECONDS:
            raise error
        elif not self._told:  # a stream that breaks once is nothing to speak of
            self._told = True
            self._tell(Trouble(str(error)))

    def is_well(self) -> None:
        if self._told:
            self._tell(Trouble(""))
        self._since, self._told = None, False


def _gone(pod: Mapping[str, Any]) -> Object:
    metadata = {**pod["metadata"], "deletionTimestamp": pod["metadata"].get("deletionTimestamp") or "now"}
    return {**pod, "metadata": metadata}
