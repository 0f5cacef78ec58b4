"""Live ranks: processes that run one cell after the other in the same namespace."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from labkit.clusters.cluster import OnOutput, OnState
from labkit.clusters.job import InvalidJob, Job
from labkit.clusters.live.conversation import ANSWER_SECONDS, Conversation, Outcome, RanksConnection
from labkit.clusters.live.messages import Answer, Cell, GroupRepair, Message, Report, answer_of
from labkit.clusters.rank_lists import named_ranks, ranges
from labkit.clusters.rank_result import RankError, RankResult
from labkit.clusters.rank_status import Frame
from labkit.clusters.run import Run, ending
from labkit.linux.clock import Clock
from labkit.trace import Trace
from labkit.transport import wire

_MEND_SECONDS = 10.0


@runtime_checkable
class LiveCluster(Protocol):
    """A cluster with live ranks."""

    def keep(self, job: Job, on_state: OnState | None = None) -> tuple[RanksConnection, Sequence[Sequence[int]]]:
        """Start ranks that process messages; returns the connection to them, and the ranks of each process.

        `on_state` is called while the start has to wait.
        """


class Interrupted(KeyboardInterrupt):
    """The learner has interrupted a cell on live ranks; `run` has each rank's place and which were killed."""

    def __init__(self, run: Run) -> None:
        super().__init__("the ranks were interrupted")
        self.run = run


@dataclass(frozen=True)
class RankState:
    """One live rank, for people."""

    rank: int
    alive: bool
    pid: int
    """Process id; 0 if unknown."""
    memory: int
    """Bytes that it holds alone, and its share of shared memory."""
    last: str
    """Last cell: `Cell In[3]`. Empty before the first."""
    ended: str = ""
    """Its end and the cell of it, if it has ended: `was killed by SIGSEGV in Cell In[4]`."""


class LiveRanks:
    """Live ranks of `cluster`. Call `close` at the end; they end with this program at the latest."""

    def __init__(
        self, cluster: LiveCluster, job: Job, on_state: OnState | None = None, clock: Clock = time.monotonic
    ) -> None:
        """`job` provides each rank's start conditions: exercise modules, environment. Its code is not run.

        clock: for timeouts of cells, and for the time that ranks have to answer an interrupt.
        """
        connection, self._hosted = cluster.keep(job, on_state)
        self._conversation = Conversation(connection, self._hosted, clock)
        self.world_size = sum(map(len, self._hosted))
        self._process = {rank: process for process, ranks in enumerate(self._hosted) for rank in ranks}
        self._modules = [dict(job.modules) for _ in self._hosted]
        self._answers: dict[int, Answer] = {}
        """The last answer of each live rank."""
        self._lines: dict[str, list[str]] = {}
        """Source lines by file, as tracebacks name it."""
        self._last: dict[int, str] = {}
        self._dead: dict[int, str] = {}
        """Ranks that have died while their process lives on, and how."""
        self._ended: dict[int, str] = {}
        """How ranks have ended, and in which cell."""
        self._generation = 0
        self._to_mend = False
        """Whether the process groups may hold unfinished operations."""

    @property
    def alive(self) -> list[int]:
        """Ranks that are alive."""
        return [rank for rank in range(self.world_size) if not self._is_dead(rank)]

    @property
    def obituary(self) -> str:
        """How the dead ranks have ended: `rank 2 was killed by SIGSEGV in Cell In[4]`."""
        return self._endings(rank for rank in range(self.world_size) if self._is_dead(rank))

    def run(
        self,
        job: Job,
        ranks: Sequence[int] | None = None,
        on_output: OnOutput | None = None,
        on_state: OnState | None = None,
        *,
        push: Mapping[str, Any] | None = None,
        pull: Sequence[str] = (),
    ) -> tuple[Run, dict[str, dict[int, Any]]]:
        """Run a job's cell on `ranks`, all if None. Returns its `Run` and the values of `pull`, by name and rank.

        push: values to set in the ranks before the cell begins; see `push`. An error in the cell is in the `Run` and
        leaves the ranks alive, as do a timeout and a hang. `Run.notes` names lost state, if any. Raises `InvalidJob`
        for a rank that is dead or does not exist, and `Interrupted` on `KeyboardInterrupt`. A rank that does not answer
        an interrupt within 2 seconds is killed.
        """
        assert job.source is not None
        chosen = self._chosen(ranks)
        require_plain(push or {})
        self._mend()
        messages = self._cells(job, chosen, push or {}, pull)
        before = set(self.alive)
        # an interrupt in the wrong place leaves groups to repair
        self._to_mend = True
        self._remember(job)
        outcome = self._conversation.ask(messages, job, on_output, on_state)
        run, pulled = self._results_of(outcome, chosen, job)
        for rank in before - set(self.alive) - self._conversation.losses.keys():
            self._ended[rank] = f"{self._how_it_ended(rank, outcome)} in {job.filename}"
        if job.source:
            self._last.update(dict.fromkeys(chosen, job.filename))
        self._to_mend = not run.ok
        self._mend()
        gone = sorted(before - set(self.alive))
        if gone:
            run = replace(run, notes=[*run.notes, f"{self._obituary(gone)}; {self._way_out()}"])
        if outcome.interrupted == "interrupted":
            raise Interrupted(run)
        return run, pulled

    def push(self, values: Mapping[str, Any]) -> None:
        """Set names in every rank's `__main__`. Raises `InvalidJob` naming values that cannot travel, or for a dead
        rank.

        Plain data and tensors travel; each rank gets its own copy, without gradient history.
        """
        self.run(_nothing(), push=values)

    def pull(self, names: Sequence[str], ranks: Sequence[int] | None = None) -> dict[str, dict[int, Any]]:
        """Values of names in the ranks' `__main__`, by name and rank. Values that cannot travel arrive as `Opaque`.

        Raises `InvalidJob` if a rank has no such name.
        """
        chosen = self._chosen(ranks)
        _, pulled = self.run(_nothing(), chosen, pull=names)
        for name, values in pulled.items():
            missing = [rank for rank in chosen if rank not in values]
            if missing:
                raise InvalidJob(f"{name} is not defined on {named_ranks(missing)}")
        return pulled

    def states(self) -> list[RankState]:
        """State of each rank."""
        self._ask_all(Report(), _nothing())
        return [self._state(rank) for rank in range(self.world_size)]

    def printed_meanwhile(self) -> list[tuple[int, str, str]]:
        """Output of ranks since the last cell, from threads that it left running: (rank, stream, text)."""
        return self._conversation.printed_meanwhile()

    def close(self) -> None:
        """End all ranks; their state is lost."""
        self._conversation.close()

    def _chosen(self, ranks: Sequence[int] | None) -> list[int]:
        chosen = sorted(set(range(self.world_size) if ranks is None else ranks))
        unknown = [rank for rank in chosen if not 0 <= rank < self.world_size]
        if unknown or not chosen:
            raise InvalidJob(f"there is no rank {ranges(unknown)}: ranks are 0 to {self.world_size - 1}")
        dead = [rank for rank in chosen if self._is_dead(rank)]
        if dead:
            raise InvalidJob(f"{self._obituary(dead)}; {self._way_out()}")
        return chosen

    def _cells(
        self, job: Job, chosen: Sequence[int], push: Mapping[str, Any], pull: Sequence[str]
    ) -> dict[int, Message]:
        """One cell for each rank; one object for ranks of the same process, or that need the same modules."""
        defaults = [answer.default for answer in self._answers.values()]
        alike: dict[frozenset[str], Message] = {}
        by_process = {}
        for process in {self._process[rank] for rank in chosen}:
            known = self._modules[process]
            changed = {name: source for name, source in job.modules.items() if known.get(name) != source}
            known.update(changed)
            by_process[process] = alike.setdefault(
                frozenset(changed),
                Cell(
                    source=job.source or "",
                    filename=job.filename,
                    first_line=job.first_line,
                    ranks=tuple(chosen),
                    modules=changed,
                    values=dict(push),
                    wanted=tuple(pull),
                    trace=job.trace,
                    has_default_group=len(defaults) == self.world_size
                    and len(set(defaults)) == 1
                    and defaults[0] != "",
                    group_count=max((answer.group_count for answer in self._answers.values()), default=0),
                    dead=tuple(rank for rank in range(self.world_size) if self._is_dead(rank)),
                ),
            )
        return {rank: by_process[self._process[rank]] for rank in chosen}

    def _results_of(self, outcome: Outcome, chosen: Sequence[int], job: Job) -> tuple[Run, dict[str, dict[int, Any]]]:
        """The run of the ranks that were asked, with times from the beginning of the cell."""
        own, answers = {}, {}
        for result in outcome.run.ranks:
            value, answer = answer_of(result.value)
            own[result.rank] = replace(result, value=value)
            if answer is not None:
                answers[result.rank] = answer
        self._take(answers)
        origin = self._origins(answers)
        stopped = outcome.interrupted if outcome.interrupted not in ("failure", "error") else ""
        if stopped == "timeout":
            stopped = f"timeout after {job.timeout:g} s"
        lost = [rank for rank in chosen if rank in self._conversation.losses]
        results = [self._result(own.get(rank), rank, outcome) for rank in chosen]
        run = Run(
            ranks=[_seen_from(result, origin[result.rank], stopped) for result in results],
            trace=_moved(outcome.run.trace, origin),
            wall_seconds=outcome.run.wall_seconds,
            stopped=stopped or self._endings(lost),
            statuses=[
                replace(status, frames=self._with_text(status.frames), apart=status.rank not in chosen)
                for status in outcome.statuses
            ],
            notes=outcome.run.notes,
        )
        pulled = {rank: answer.pulled for rank, answer in answers.items()}
        names = dict.fromkeys(name for values in pulled.values() for name in values)
        return run, {name: {rank: values[name] for rank, values in pulled.items() if name in values} for name in names}

    def _origins(self, answers: Mapping[int, Answer]) -> list[float]:
        """The time on each rank's clock when the first rank that has answered began."""
        # one clock per node; a reading that gives an earlier start was interrupted between the two clocks
        began: dict[int, float] = {}
        for answer in answers.values():
            began[answer.clock] = max(began.get(answer.clock, answer.clock_began), answer.clock_began)
        first = min((began[answer.clock] + answer.began for answer in answers.values()), default=0.0)
        zeros = {rank: began[answer.clock] for rank, answer in answers.items()}
        return [first - zeros.get(rank, min(began.values(), default=0.0)) for rank in range(self.world_size)]

    def _result(self, result: RankResult | None, rank: int, outcome: Outcome) -> RankResult:
        """The final result of one rank."""
        if result is None:
            return RankResult(rank, exit=None)
        if rank in outcome.killed:
            frames = self._with_text(result.error.frames if result.error is not None else ())
            message = f"did not answer an interrupt within {ANSWER_SECONDS:g} s and was killed"
            return replace(result, exit=None, error=RankError("Killed", message, frames, consequence=True))
        if outcome.interrupted == "failure" and result.error is not None and _is_interrupt(result.error):
            return replace(result, error=replace(result.error, consequence=True))
        return result

    def _remember(self, job: Job) -> None:
        """Remember the source lines of a cell and its modules: the supervisor sends only line numbers."""
        self._lines[job.filename] = [""] * (job.first_line - 1) + (job.source or "").splitlines()
        self._lines.update({f"{name}.py": source.splitlines() for name, source in job.modules.items()})

    def _with_text(self, frames: Iterable[Frame]) -> tuple[Frame, ...]:
        with_text = []
        for file, number, function, _ in frames:
            lines = self._lines.get(file, [])
            with_text.append((file, number, function, lines[number - 1].strip() if 0 < number <= len(lines) else ""))
        return tuple(with_text)

    def _how_it_ended(self, rank: int, outcome: Outcome) -> str:
        if rank in outcome.killed:
            return f"did not answer an interrupt within {ANSWER_SECONDS:g} s and was killed"
        return self._how_it_died(rank)

    def _how_it_died(self, rank: int) -> str:
        talk = self._conversation
        return self._dead.get(rank) or talk.losses.get(rank) or ending(talk.exits[rank])

    def _obituary(self, gone: Sequence[int]) -> str:
        """`rank 2 was killed by SIGSEGV in Cell In[4], and what it held is gone`."""
        return f"{self._endings(gone)}, and what {'they' if len(gone) > 1 else 'it'} held is gone"

    def _endings(self, gone: Iterable[int]) -> str:
        """`rank 2 was killed by SIGSEGV in Cell In[4]`; of several ranks, each kind of end once."""
        alike: dict[str, list[int]] = {}
        for rank in gone:
            alike.setdefault(self._how_in_words(rank), []).append(rank)
        return ", ".join(f"{named_ranks(ranks)} {how}" for how, ranks in alike.items())

    def _how_in_words(self, rank: int) -> str:
        return self._ended.get(rank) or self._how_it_died(rank)

    def _way_out(self) -> str:
        alive = self.alive
        others = f", and %%ranks --ranks {ranges(alive).replace(' ', '')} still reaches the others" if alive else ""
        return f"%ranks restart starts all ranks afresh{others}"

    def _mend(self) -> None:
        """After a failure: connect the process groups again, so that none holds unfinished operations."""
        if not self._to_mend:
            return
        alive = self.alive
        names = {
            name: members
            for rank in alive
            if rank in self._answers
            for name, members in self._answers[rank].groups.items()
        }
        whole = [
            name
            for name, members in names.items()
            if all(m in self._answers and self._answers[m].groups.get(name) == members for m in members)
        ]
        defaults = {self._answers[rank].default if rank in self._answers else "" for rank in alive}
        lost = bool(defaults - {""}) and not (len(defaults) == 1 and defaults <= set(whole))
        self._generation += 1
        # a group with a dead member is left alone, and raises an error itself when it is used
        repair = GroupRepair(self._generation, tuple(whole), without_default=lost and len(alive) == self.world_size)
        self._ask_all(repair, _nothing(_MEND_SECONDS))
        self._to_mend = False

    def _ask_all(self, message: Message, job: Job) -> None:
        outcome = self._conversation.ask(dict.fromkeys(self.alive, message), job)
        answers = {result.rank: answer_of(result.value)[1] for result in outcome.run.ranks}
        self._take({rank: answer for rank, answer in answers.items() if answer is not None})

    def _take(self, answers: Mapping[int, Answer]) -> None:
        self._answers.update(answers)
        for rank, answer in answers.items():
            if answer.ended:
                self._dead[rank] = answer.ended
        self._answers = {rank: answer for rank, answer in self._answers.items() if not self._is_dead(rank)}

    def _is_dead(self, rank: int) -> bool:
        return rank in self._dead or rank in self._conversation.exits

    def _state(self, rank: int) -> RankState:
        answer = self._answers.get(rank)
        dead = self._is_dead(rank)
        return RankState(
            rank=rank,
            alive=not dead,
            pid=answer.pid if answer else 0,
            memory=answer.memory if answer else 0,
            last=self._last.get(rank, ""),
            ended=self._how_in_words(rank) if dead else "",
        )


def require_plain(values: Mapping[str, Any]) -> None:
    """Raise `InvalidJob` naming the values that cannot travel to live ranks."""
    for name, value in values.items():
        stays = wire.what_stays(value)
        if stays is not None:
            part = "" if stays.type == type(value).__name__ else f"{type(value).__name__} that holds a "
            raise InvalidJob(
                f"{name} cannot be pushed: it is a {part}{stays.type}, and only tensors and plain data travel"
            )


def _nothing(timeout: float | None = None) -> Job:
    return Job(source="", filename="%ranks", trace=False, timeout=timeout, hang_timeout=None)


def _is_interrupt(error: RankError) -> bool:
    return error.type == "KeyboardInterrupt"


def _seen_from(result: RankResult, origin: float, stopped: str) -> RankResult:
    """The result with times since `origin`; an interrupt for a timeout is reported as a timeout."""
    error = result.error
    if error is None:
        return result
    if error.type == "SystemExit":
        error = replace(error, type="sys.exit", message=f"{error.message}: the cell ended there, and the rank lives on")
    if stopped not in ("", "interrupted") and _is_interrupt(error):
        kind = "Timeout" if stopped.startswith("timeout") else "Hang"
        error = replace(error, type=kind, message=f"still running: {stopped}")
    return replace(result, error=replace(error, time=max(0.0, error.time - origin)))


def _moved(trace: Trace, origin: Sequence[float]) -> Trace:
    """The trace with times since each rank's `origin`."""
    events = [e._replace(start=e.start - origin[e.rank], end=e.end - origin[e.rank]) for e in trace.events]
    memberships = [
        m._replace(joined=m.joined - origin[m.rank], left=None if m.left is None else m.left - origin[m.rank])
        for m in trace.memberships
    ]
    return replace(trace, events=events, memberships=memberships)
