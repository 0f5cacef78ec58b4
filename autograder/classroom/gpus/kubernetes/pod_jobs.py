"""The course's jobs on a Kubernetes cluster. Their labels are the hub's; no text that a learner chooses is read.

Pods that are deleted between two looks, or while the hub restarts, are found in the API's history of changes: it has
their last state, with the times at which their containers ended.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from autograder.classroom.gpus.jobs import Job, SchedulerFailed
from autograder.classroom.gpus.kubernetes.runs import Runs
from autograder.classroom.gpus.kubernetes.shapes import API_VERSIONS, GPU, USER_LABEL, user_of
from labkit.clusters.kubernetes.api import ANSWER_SECONDS, Api
from labkit.clusters.kubernetes.errors import ApiRefused, ApiUnreachable

_JOB_NAME = "job-name"


class PodJobs:
    """A run is one job. Its pods hold all of its GPUs from when the first has a node until the last has ended."""

    def __init__(self, api: Api, runs: Runs) -> None:
        self._api, self._runs = api, runs
        self._starts: dict[str, int] = runs.starts()
        """Start times of runs' pods: those of a deleted run vanish one by one, perhaps the first one first."""
        self._version = runs.pods_version()
        """Version of the pods at the last look; empty before the first one ever."""
        self._seen: set[str] | None = None
        """Names of the pods at the last look; None before this process's first one."""

    def jobs_of(self, users: Collection[str]) -> list[Job]:
        """Return the runs of these users. Raises `SchedulerFailed`."""
        pods: dict[str, list[Any]] = {}
        # pods outlive a Job that was deleted, until they have ended. They are listed first: a run that ends in between
        # is then seen with its pods, and one that begins in between by the next look
        listed, version = self._list("v1", "pods")
        names = {pod["metadata"]["name"] for pod in listed}
        gone = [] if self._seen is not None and self._seen <= names else self._deleted(names)
        for pod in [*listed, *gone]:
            pods.setdefault(pod["metadata"]["labels"].get(_JOB_NAME, ""), []).append(pod)
        jobs = {job["metadata"]["name"]: job for job in self._list("batch/v1", "jobs")[0]}
        runs, starts = [], {}
        for name in sorted({*pods, *jobs} - {""}, key=lambda name: (_made(jobs.get(name), pods.get(name, [])), name)):
            run = _run(name, jobs.get(name), pods.get(name, []), self._starts.get(name, 0))
            starts[name] = run.start
            if run.user in users:
                runs.append(run)
        self._runs.keep(starts, version)
        self._starts, self._version, self._seen = starts, version, names
        return runs

    def allocated_gpus(self, job_id: str) -> int:
        """Return 0: what a Job has asked for is what its pods have."""
        return 0

    def cancel(self, job_id: str) -> None:
        """Delete a run: its Job with the pods, and what was made for them. Raises `SchedulerFailed`."""
        for plural, version in API_VERSIONS.items():
            with _scheduler():
                self._api.delete(self._api.path(version, plural, job_id))
        self._runs.end(job_id)

    def shorten(self, job_id: str, minutes: int) -> None:
        """Let a run's pods end so many minutes after the first of them has begun. Raises `SchedulerFailed`."""
        path = self._api.path("batch/v1", "jobs", job_id)
        with _scheduler():
            # pods' own limits could be changed only one by one
            seconds = 60 * minutes + _waited(self._api.get(path), self._starts.get(job_id, 0))
            self._api.patch(path, {"spec": {"activeDeadlineSeconds": seconds}})

    def _list(self, version: str, plural: str) -> tuple[list[Any], str]:
        """Return objects, and their version."""
        with _scheduler():
            answer = self._api.get(self._api.path(version, plural), labelSelector=USER_LABEL)
        return answer["items"], answer["metadata"]["resourceVersion"]

    def _deleted(self, names: Collection[str]) -> list[Any]:
        """Return the pods that were deleted since the last look, in their last state, as pods that have ended.

        names: those that exist. Empty if the API has no history of that time: it keeps it for some minutes.
        """
        if not self._version:
            return []
        query = {"watch": "true", "timeoutSeconds": "1", "resourceVersion": self._version}
        deleted: dict[str, Any] = {}
        # 410: the history is gone. A connection that breaks: the last look is all that is known
        with contextlib.suppress(ApiRefused, ApiUnreachable):
            path = self._api.path("v1", "pods")
            with self._api.lines(path, ANSWER_SECONDS, labelSelector=USER_LABEL, **query) as lines:
                for event in map(json.loads, lines):
                    if event["type"] == "DELETED" and event["object"]["metadata"]["name"] not in names:
                        deleted[event["object"]["metadata"]["name"]] = _ended(event["object"], time.time())
        return list(deleted.values())


@contextlib.contextmanager
def _scheduler() -> Iterator[None]:
    """Raise `SchedulerFailed` for what the API refuses or does not answer."""
    try:
        yield
    except (ApiRefused, ApiUnreachable) as problem:
        raise SchedulerFailed(f"the API of Kubernetes: {problem.reason}") from None


def _run(name: str, job: Any, pods: list[Any], known_start: int) -> Job:
    """Return a run as a job. job: None if deleted; pods: all that exist; known_start: from an earlier look, or 0."""
    spec = job["spec"]["template"]["spec"] if job else pods[0]["spec"]
    nnodes = job["spec"]["completions"] if job else len(pods)
    gpus = _gpus(spec)
    begun = [pod for pod in pods if pod["status"].get("startTime")]
    start = known_start or min((_time(pod["status"]["startTime"]) for pod in begun), default=0)
    over = {kind: when for kind, when in _conditions(job).items() if kind in ("Complete", "Failed")}
    if any(map(_holds, begun)):
        state = "RUNNING"
    elif over or not job:
        state = "COMPLETED" if start else "CANCELLED"
    else:
        state = "RUNNING" if start else "PENDING"
    end = 0
    if state == "COMPLETED":
        end = max(
            [start, *(_time(when) for pod in pods for when in _finished(pod)), *map(_time, filter(None, over.values()))]
        )
    limit: float = spec.get("activeDeadlineSeconds", math.inf)
    if job and start:
        limit = min(limit, job["spec"].get("activeDeadlineSeconds", math.inf) - _waited(job, start))
    return Job(name, user_of(job or pods[0]), state, start, end, limit, nnodes, nnodes * gpus)


def _ended(pod: Any, now: float) -> Any:
    """Return a deleted pod as one that has ended, at the latest when Kubernetes has deleted it, or at `now`."""
    status = pod.get("status") or {}
    if not any(_finished({"status": status})):
        deadline = pod["metadata"].get("deletionTimestamp")
        last = min(now, _time(deadline)) if deadline else now
        finished = datetime.fromtimestamp(int(last), UTC).isoformat()
        status = {**status, "containerStatuses": [{"state": {"terminated": {"finishedAt": finished}}}]}
    else:
        ended = [each for each in status["containerStatuses"] if (each.get("state") or {}).get("terminated")]
        status = {**status, "containerStatuses": ended}
    return {**pod, "status": {**status, "phase": "Succeeded"}}


def _gpus(spec: Mapping[str, Any]) -> int:
    """Return the GPUs of one pod, as Kubernetes reserves them: its init containers have them before the others."""

    def of(container: Mapping[str, Any]) -> int:
        resources = container.get("resources") or {}
        return max(int((resources.get(kind) or {}).get(GPU, "0")) for kind in ("limits", "requests"))

    return max([sum(map(of, spec["containers"])), *map(of, spec.get("initContainers") or ())])


def _holds(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod that has begun holds its GPUs.

    At its time limit, or evicted, a pod may be `Failed` while its containers run on for the grace period.
    """
    statuses = pod["status"].get("containerStatuses") or ()
    runs = any((status.get("state") or {}).get("running") is not None for status in statuses)
    return runs or pod["status"].get("phase") not in ("Succeeded", "Failed")


def _waited(job: Any, start: int) -> int:
    """Return the seconds from the start of a Job's own time limit to the start of its pods."""
    begun = (job.get("status") or {}).get("startTime") or job["metadata"]["creationTimestamp"]
    return max(0, start - _time(begun))


def _made(job: Any, pods: list[Any]) -> str:
    """Return the creation time of a run, ISO 8601, by which waiting jobs are ordered."""
    return str((job or pods[0])["metadata"]["creationTimestamp"])


def _conditions(job: Any) -> dict[str, str]:
    """Return the start time of each condition that holds; empty where it is unknown."""
    conditions = ((job or {}).get("status") or {}).get("conditions") or ()
    return {
        condition["type"]: condition.get("lastTransitionTime") or ""
        for condition in conditions
        if condition.get("status") == "True"
    }


def _finished(pod: Mapping[str, Any]) -> Iterator[str]:
    for status in pod["status"].get("containerStatuses") or ():
        if when := status.get("state", {}).get("terminated", {}).get("finishedAt"):
            yield when


def _time(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())
