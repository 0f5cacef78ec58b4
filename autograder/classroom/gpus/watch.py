"""Looks at Slurm: writes the ledger, and applies the rules."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from autograder.classroom.gpus import rules, slurm_jobs
from autograder.classroom.gpus.ledger import Ledger
from autograder.classroom.gpus.slurm_jobs import Job, SlurmFailed
from autograder.classroom.site import Gpus

_log = logging.getLogger("gpus")


@dataclass
class Watch:
    """What the last look has seen."""

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

    def look(self) -> None:
        """Look once. A look that fails changes nothing, and the next one makes up for it."""
        now = time.time()
        try:
            jobs = slurm_jobs.jobs_of({*self.learners, *self.others})
            gpus = self.ledger.known_gpus(now)
            for job in jobs:
                if job.has_run and (job.id, job.start) not in gpus:
                    gpus[job.id, job.start] = self._gpus_of(job)
            self.ledger.record(jobs, gpus, now)
            used = self.ledger.used(now)
            limited = [job for job in jobs if job.user in self.learners]
            problems = [self._do(action, now) for action in rules.actions(limited, gpus, used, self.limits, now)]
            self.problem = next(filter(None, problems), "")
        except SlurmFailed as problem:
            if self.problem != str(problem):
                _log.error("Slurm does not answer as needed: %s", problem)
            self.problem = str(problem)
            return
        found = [
            (job, gpus.get((job.id, job.start), 0) if job.holds else job.asked_gpus)
            for job in jobs
            if job.holds or job.waits
        ]
        self.jobs = [(job, count) for job, count in found if count]

    @staticmethod
    def _gpus_of(job: Job) -> int:
        if not job.holds:  # it has ended between two looks
            return job.asked_gpus
        try:
            return max(slurm_jobs.allocated_gpus(job.id), job.asked_gpus)
        except SlurmFailed:  # the next look will see whether it has ended
            return job.asked_gpus

    def _do(self, action: rules.Action, now: float) -> str:
        """Cancel or shorten a job; return what went wrong. One job must not keep the rules from the others.

        The learner is told before it happens: a cell asks as soon as its job has ended.
        """
        self.ledger.notify(action.job.id, action.job.user, action.text, now)
        try:
            if action.minutes:
                slurm_jobs.shorten(action.job.id, action.minutes)
            else:
                slurm_jobs.cancel(action.job.id)
        except SlurmFailed as problem:
            _log.error("job %s could not be changed: %s", action.job.id, problem)
            return str(problem)
        return ""

    def stop(self, id: str, instructor: str) -> bool:
        """Cancel a job of the course's, by an instructor. Returns False if there is none. Raises `SlurmFailed`."""
        job = next((job for job, _ in self.jobs if job.id == id), None)
        if job is None:
            return False
        text = f"job {job.id} was cancelled by {instructor}, an instructor"
        self.ledger.notify(job.id, job.user, text, time.time())
        slurm_jobs.cancel(job.id)
        return True
