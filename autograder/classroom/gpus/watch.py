"""Looks at the jobs: writes the ledger, and applies the rules."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from autograder.classroom.gpus import rules
from autograder.classroom.gpus.jobs import Job, Scheduler, SchedulerFailed
from autograder.classroom.gpus.ledger import Ledger
from autograder.classroom.site import Gpus

_log = logging.getLogger("gpus")
_T = TypeVar("_T")


@dataclass
class Watch:
    """Looks at the jobs, and keeps the results of the last look. Threads may share it."""

    scheduler: Scheduler
    ledger: Ledger
    limits: Gpus
    learners: Collection[str]
    """Users who are limited."""
    others: Collection[str] = ()
    """Users who are only counted: instructors."""
    jobs: list[tuple[Job, int]] = field(default_factory=list)
    """Jobs with GPUs that wait or hold nodes, with their number of GPUs."""
    problem: str = ""
    """Why the last look has failed; empty if it has not."""
    _allocated: dict[tuple[str, int], int] = field(default_factory=dict)
    """What the scheduler has said that it gave to the jobs of the last look, by job and start."""
    _looks: threading.Lock = field(default_factory=threading.Lock)
    _threads: ThreadPoolExecutor = field(default_factory=ThreadPoolExecutor)

    async def in_thread(self, function: Callable[..., _T], *arguments: object) -> _T:
        """Call a function that asks the scheduler, without blocking the loop or taking its own threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *arguments))

    def look(self) -> None:
        """Look once. A look that fails changes nothing, and the next one makes up for it."""
        with self._looks:
            self.look_at(time.time())

    def look_at(self, now: float) -> None:
        """Look once at that time, Unix seconds; for one thread alone."""
        try:
            jobs = self.scheduler.jobs_of({*self.learners, *self.others})
            gpus = {(job.id, job.start): self._gpus_of(job) for job in jobs if job.has_run}
            self._allocated = {key: count for key, count in self._allocated.items() if key in gpus}
            self.ledger.record(jobs, gpus, now)
            used = self.ledger.used(now)
            limited = [job for job in jobs if job.user in self.learners]
            problems = [self._do(action, now) for action in rules.actions(limited, gpus, used, self.limits, now)]
            self.problem = next(filter(None, problems), "")
        except SchedulerFailed as problem:
            if self.problem != str(problem):
                _log.error("what runs jobs does not answer as needed: %s", problem)
            self.problem = str(problem)
            return
        active = [
            (job, gpus.get((job.id, job.start), 0) if job.holds else job.asked_gpus)
            for job in jobs
            if job.holds or job.waits
        ]
        self.jobs = [(job, count) for job, count in active if count]

    def _gpus_of(self, job: Job) -> int:
        """Return what the scheduler gave to a job, also to one that ended between two looks: with `--exclusive`, for
        example, a job has GPUs that it did not request. What it requested counts until the scheduler has answered."""
        key = (job.id, job.start)
        if key not in self._allocated:
            try:
                self._allocated[key] = self.scheduler.allocated_gpus(job.id)
            except SchedulerFailed:  # the next look asks again
                return job.asked_gpus
        return max(self._allocated[key], job.asked_gpus)

    def _do(self, action: rules.Action, now: float) -> str:
        """Cancel or shorten a job; return what went wrong. One job must not keep the rules from the others.

        The notice to the learner is written first: a cell asks for it as soon as its job has ended.
        """
        self.ledger.notify(action.job.id, action.job.user, action.text, now)
        try:
            if action.minutes:
                self.scheduler.shorten(action.job.id, action.minutes)
            else:
                self.scheduler.cancel(action.job.id)
        except SchedulerFailed as problem:
            _log.error("job %s could not be changed: %s", action.job.id, problem)
            return str(problem)
        return ""

    def stop(self, id: str, instructor: str) -> bool:
        """Cancel a job of the course's, by an instructor. Returns False if there is none. Raises `SchedulerFailed`."""
        job = next((job for job, _ in self.jobs if job.id == id), None)
        if job is None:
            return False
        text = f"job {job.id} was cancelled by {instructor}, an instructor"
        self.ledger.notify(job.id, job.user, text, time.time())
        self.scheduler.cancel(job.id)
        return True
