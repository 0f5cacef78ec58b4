"""Takes entries from the grading queue to the leaderboard, and the course's own entries when nobody waits."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from autograder.classroom.challenges.entries import challenge_of, course_entries, is_withdrawal, received
from autograder.classroom.challenges.judging import judge
from autograder.classroom.challenges.leaderboard import Judgement, Leaderboard
from autograder.classroom.grading_queue import Done, Submission
from autograder.intake.limits import EntryRefused, FilesChanged
from autograder.intake.stamps import received_at
from labkit.challenges.challenge import find
from labkit.checks import CannotJudge

log = logging.getLogger("grading")


class EntryGrader:
    """Judges entries. people: user names, which nobody may use in the standings. open: names of open challenges."""

    def __init__(self, leaderboard: Leaderboard, people: Collection[str], open: Sequence[str]) -> None:
        self._leaderboard, self._people, self._open = leaderboard, people, open

    def grade(self, one: Submission) -> Done:
        """Judge an entry and keep it, or withdraw the author's; done again, each has the same result.

        Raises IntakeFailed and `CannotJudge`, which are not the author's fault.
        """
        challenge = challenge_of(one.assignment)
        assert challenge is not None
        try:
            sent = received_at(one.path, one.path.lstat())
        except OSError as problem:
            raise FilesChanged(f"{one.path.name} is not there: {problem.strerror}") from None
        if is_withdrawal(one.assignment):
            self._leaderboard.withdraw(challenge, one.learner, sent)
            return self._done(one, judged=True, problem="")
        if self._leaderboard.is_withdrawn(challenge, one.learner, sent):
            return self._done(one, judged=False, problem="you have withdrawn it")
        own = course_entries(challenge)
        taken = {*own, *self._leaderboard.names_of_others(challenge, one.learner)}
        try:
            entry = received(one.path, self._people, taken)
        except EntryRefused as problem:
            return self._done(one, judged=False, problem=str(problem))
        judged = self._judge(challenge, entry.source)
        self._leaderboard.keep(challenge, one.path.name, one.learner, entry.name, entry.source, judged, now(), sent)
        return self._done(one, judged=True, problem=judged.fault)

    def grade_own(self) -> bool:
        """Judge the next of the course's own entries that is not in the standings; return whether there was one."""
        for challenge in self._open:
            if not self._leaderboard.bounds(challenge):
                bounds = find(challenge).load().bounds(self._leaderboard.seed())
                self._leaderboard.keep_bounds(challenge, dict(bounds))
            known = {result.name for result in self._leaderboard.results(challenge) if not result.author}
            for name, path in course_entries(challenge).items():
                if name not in known:
                    log.info("judging the course's own entry %s of %s", name, challenge)
                    source = path.read_text()
                    self._leaderboard.keep(challenge, name, "", name, source, self._judge(challenge, source), now())
                    return True
        return False

    def _judge(self, challenge: str, source: str) -> Judgement:
        try:
            return judge(challenge, source, self._leaderboard.seed())
        except CannotJudge:
            raise
        except Exception as problem:  # whatever an entry has sent: the next one is judged all the same
            log.exception("an entry of %s", challenge)
            return Judgement((), "it could not be judged; ask your instructor", repr(problem)[:2000])

    def _done(self, submission: Submission, judged: bool, problem: str) -> Done:
        return Done(
            submission.learner, submission.assignment, submission.path.name, now(), judged=judged, problem=problem
        )


def now() -> str:
    """Return the time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
