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
from labkit.text_files import read_text

log = logging.getLogger("grading")


class EntryGrader:
    """Judges entries.

    people: user names, which nobody may use in the standings. open, over: names of challenges.
    """

    def __init__(
        self, leaderboard: Leaderboard, people: Collection[str], open: Sequence[str], over: Sequence[str] = ()
    ) -> None:
        self._leaderboard, self._people, self._open, self._over = leaderboard, people, open, over

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
            for board in (self._leaderboard, self._leaderboard.final):
                board.withdraw(challenge, one.learner, sent)
            return self._done(one, judged=True, problem="")
        if self._leaderboard.is_withdrawn(challenge, one.learner, sent):
            return self._done(one, judged=False, problem="you have withdrawn it")
        own = course_entries(challenge)
        taken = {*own, *self._leaderboard.names_of_others(challenge, one.learner)}
        try:
            entry = received(one.path, self._people, taken)
        except EntryRefused as problem:
            return self._done(one, judged=False, problem=str(problem))
        judged = self._judge(challenge, entry.source, self._leaderboard.seed())
        self._leaderboard.keep(challenge, one.path.name, one.learner, entry.name, entry.source, judged, now(), sent)
        return self._done(one, judged=True, problem=judged.fault)

    def grade_unsent(self) -> bool:
        """Judge the next entry that nobody waits for; return whether there was one.

        It is one of the standings of a challenge that is over, on new instances, or an entry of the course's own that
        is not in the standings.
        """
        return self._grade_again() or self._grade_own()

    def _grade_again(self) -> bool:
        final = self._leaderboard.final
        for challenge in self._over:
            known = {result.id for result in final.results(challenge)}
            for one in self._leaderboard.standings(challenge):
                if one.result is None or final.id_of(one.result.id) in known:
                    continue
                _keep_bounds(final, challenge)
                before, name = one.result, one.row.name
                log.info("judging %s of %s on new instances: it is over", before.id, challenge)
                source = self._leaderboard.source(challenge, before.id)
                judged = self._judge(challenge, source, final.seed())
                final.keep(challenge, before.id, before.author, name, source, judged, now(), before.sent)
                return True
        return False

    def _grade_own(self) -> bool:
        for challenge in self._open:
            _keep_bounds(self._leaderboard, challenge)
            known = {result.name for result in self._leaderboard.results(challenge) if not result.author}
            for name, path in course_entries(challenge).items():
                if name not in known:
                    log.info("judging the course's own entry %s of %s", name, challenge)
                    source = read_text(path)
                    judged = self._judge(challenge, source, self._leaderboard.seed())
                    self._leaderboard.keep(challenge, name, "", name, source, judged, now())
                    return True
        return False

    def _judge(self, challenge: str, source: str, seed: int) -> Judgement:
        try:
            return judge(challenge, source, seed)
        except CannotJudge:
            raise
        except Exception as problem:  # whatever an entry has sent: the next one is judged all the same
            log.exception("an entry of %s", challenge)
            return Judgement((), "it could not be judged; ask your instructor", repr(problem)[:2000])

    def _done(self, submission: Submission, judged: bool, problem: str) -> Done:
        return Done(
            submission.learner, submission.assignment, submission.path.name, now(), judged=judged, problem=problem
        )


def _keep_bounds(board: Leaderboard, challenge: str) -> None:
    """Compute the bounds of a challenge at its first entry."""
    if not board.bounds(challenge):
        board.keep_bounds(challenge, dict(find(challenge).load().bounds(board.seed())))


def now() -> str:
    """Return the time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
