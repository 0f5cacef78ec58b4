"""The course's jobs on a Kubernetes cluster. Their labels are the hub's; no text that a learner chooses is read."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from autograder.classroom.gpus.jobs import Job, SchedulerFailed
from autograder.classroom.gpus.kubernetes.runs import Runs
from autograder.classroom.gpus.kubernetes.shapes import API_VERSIONS, GPU, USER_LABEL, user_of
from labkit.clusters.kubernetes.api import Api
from labkit.clusters.kubernetes.errors import ApiRefused, ApiUnreachable

_JOB_NAME = "job-name"


class PodJobs:
    """A run is one job. Its pods hold all of its GPUs from when the first has a node until the last has ended."""

    def __init__(self, api: Api, runs: Runs) -> None:
        self._api, self._runs = api, runs
        self._starts: dict[str, int] = {}
        """Start times of runs' pods: those of a deleted run vanish one by one, perhaps the first one first."""

    def jobs_of(self, users: Collection[str]) -> list[Job]:
        """Return the runs of these users. Raises `SchedulerFailed`."""
        pods: dict[str, list[Any]] = {}
        # pods outlive a Job that was deleted, until they have ended. They are listed first: a run that ends in between
        # is then seen with its pods, and one that begins in between by the next look
        for pod in self._list("v1", "pods"):
            pods.setdefault(pod["metadata"]["labels"].get(_JOB_NAME, ""), []).append(pod)
        jobs = {job["metadata"]["name"]: job for job in self._list("batch/v1", "jobs")}
        runs, starts = [], {}
        for name in sorted({*pods, *jobs} - {""}, key=lambda name: (_made(jobs.get(name), pods.get(name, [])), name)):
            run = _run(name, jobs.get(name), pods.get(name, []), self._starts.get(name, 0))
            starts[name] = run.start
            if run.user in users:
                runs.append(run)
        self._starts = starts
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

    def _list(self, version: str, plural: str) -> list[Any]:
        with _scheduler():
            items: list[Any] = self._api.get(self._api.path(version, plural), labelSelector=USER_LABEL)["items"]
        return items


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
    gpus = sum(int(each.get("resources", {}).get("limits", {}).get(GPU, "0")) for each in spec["containers"])
    begun = [pod for pod in pods if pod["status"].get("startTime")]
    start = known_start or min((_time(pod["status"]["startTime"]) for pod in begun), default=0)
    over = {kind: when for kind, when in _conditions(job).items() if kind in ("Complete", "Failed")}
    if any(pod["status"].get("phase") not in ("Succeeded", "Failed") for pod in begun):
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
