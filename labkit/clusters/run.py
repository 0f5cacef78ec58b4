"""A run: the results of all ranks. Pictures, checks, grades and benchmarks read nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.clusters import connection_loss, error_hints, hangs
from labkit.clusters.rank_lists import named_ranks
from labkit.clusters.rank_result import RankError, RankResult
from labkit.clusters.rank_status import RankStatus
from labkit.trace import Trace, views

if TYPE_CHECKING:
    from anywidget import AnyWidget
    from matplotlib.figure import Figure


class RankFailed(RuntimeError):
    """A rank failed; raised in the notebook so that Run All, nbval and nbgrader notice. `run` is the whole run."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.diagnosis())
        self.run = run


@dataclass(frozen=True, repr=False)
class Run:
    """One finished run. A failed run is a `Run` too."""

    ranks: Sequence[RankResult]
    trace: Trace = field(default_factory=lambda: Trace(0))
    wall_seconds: float = 0.0
    stopped: str = ""
    """Why the lab stopped the ranks (`timeout after 30 s`, `deadlock`), or empty."""
    statuses: Sequence[RankStatus] = ()
    """Status of each real rank when the lab stopped it; empty when nothing was stopped, or nothing is known."""
    notes: Sequence[str] = ()
    """Notes for the learner on how it ran: `4 ranks share 2 GPUs: gloo is used, not nccl`."""
    advice: str = ""
    """Hint for the first failure from the notebook, which replaces the general one."""
    logs: Path | None = None
    """Folder with one output file per rank; None when nothing was printed, or outside a notebook."""

    def __repr__(self) -> str:
        how = "all ranks succeeded" if self.ok else self.diagnosis().splitlines()[0]
        return f"<Run of {len(self.ranks)} ranks in {self.wall_seconds:.3g} s: {how}; {self.trace!r}>"

    @property
    def ok(self) -> bool:
        return not self.stopped and all(r.error is None and r.exit == 0 for r in self.ranks)

    @property
    def values(self) -> list[Any]:
        """Each rank's value."""
        return [r.value for r in self.ranks]

    @property
    def first_failure(self) -> RankResult | None:
        """The rank that failed first, consequences last; None when all succeeded."""
        failed = [r for r in self.ranks if r.error is not None or r.exit != 0]

        def order(result: RankResult) -> tuple[bool, bool, float, int]:
            error = result.error
            consequence = result.exit is None if error is None else error.consequence
            # ranks that are not known to have failed on their own come last
            return (consequence, error is None, error.time if error else 0.0, result.rank)

        return min(failed, key=order, default=None)

    def diagnosis(self) -> str:
        """Which rank failed first, at which line, why, and how the others ended; empty when all succeeded."""
        first = self.first_failure
        if self.stopped and self.statuses:
            return "\n".join([f"stopped: {self.stopped}", *hangs.report(self.statuses)])
        if first is None:
            return self.stopped
        lines = [f"stopped: {self.stopped}"] if self.stopped else []
        alike, hints = self.alike(first), self.what_to_try()
        error = first.error
        if error is None:
            lines.append(f"rank {first.rank} {ending(first.exit)}")
        else:
            here = [rank for rank in alike if self._error(rank).where == error.where]
            if error.consequence and hints:
                lines.append(self.headline(first, alike))
            else:
                at = f" at {error.where}" if error.where else ""
                lines.append(f"{self.headline(first, here)}{at}{'' if error.says_nothing else f': {error.message}'}")
            lines += [f"    {text}" for *_, text in error.frames[-1:] if text]
            if error.locals:
                lines.append("    " + ", ".join(f"{name} = {shown}" for name, shown in error.locals))
            lines += [
                f"    called in {name}, line {line}: {text}"
                for file, line, name, text in error.frames[-2:-1]
                if file == error.frames[-1][0]  # else a check called it, not the learner
            ]
            places: dict[str, list[int]] = {}
            for rank in alike:
                places.setdefault(self._error(rank).where, []).append(rank)
            for where, elsewhere in places.items():
                if where != error.where:
                    lines.append(f"also on {named_ranks(elsewhere)}" + f" at {where}" * bool(where))
        lines += hints
        others = [r for r in self.ranks if r.rank not in alike and (r.error is not None or r.exit != 0)]
        folded = [r.rank for r in others if error is None or r.error is None or r.error.consequence]
        if folded:
            lines.append(f"{named_ranks(folded)} stopped because of it")
        return "\n".join(lines)

    def alike(self, first: RankResult) -> list[int]:
        """The ranks that failed like `first`: with the same error, or all that lost a connection if it did."""
        error = first.error
        if error is None:
            return [first.rank]
        kind = error.type, error.message
        lost = [r.rank for r in self.ranks if r.error and error.consequence and r.error.consequence]
        return lost or [r.rank for r in self.ranks if r.error and (r.error.type, r.error.message) == kind]

    def headline(self, first: RankResult, alike: Sequence[int]) -> str:
        """`ValueError on ranks 0, 2`; `rank 3 was killed by SIGKILL`."""
        error = first.error
        who = "every rank" if len(alike) == len(self.ranks) > 1 else named_ranks(alike)
        if error is None or error.is_mere_end:
            return f"{who} {ending(first.exit)}"
        ended = [r.rank for r in self.ranks if r.error is None and r.exit == 0]
        if error.consequence and ended:
            return f"{who} lost the connection to {named_ranks(ended)}, which had ended"
        return f"{error.type} on {who}"

    def what_to_try(self) -> list[str]:
        """Findings about the first failure and a hint, in a line or two."""
        first = self.first_failure
        if first is None or first.error is None:
            return []
        if first.error.consequence:
            return connection_loss.findings(self.ranks, self.trace)
        amounts = connection_loss.amounts(self.trace) if first.error.type == "SIGABRT" else []
        hint = self.advice or error_hints.error_hint(first.error.type, first.error.message, first.error.file)
        return [*amounts, *([f"try: {hint}"] if hint else [])]

    def _error(self, rank: int) -> RankError:
        error = next(result.error for result in self.ranks if result.rank == rank)
        assert error is not None
        return error

    def raise_if_failed(self) -> Run:
        """Raise `RankFailed` unless all ranks succeeded; else return this run."""
        if not self.ok:
            raise RankFailed(self)
        return self

    def plot(self) -> Figure:
        """The timeline of this run's trace."""
        figure: Figure = views.make("timeline", self.trace)
        return figure

    def view(self) -> AnyWidget:
        """The zoomable, interactive timeline, in a notebook."""
        viewer: AnyWidget = views.make("viewer", self.trace)
        return viewer

    def to_perfetto(self, path: str | Path) -> Path:
        """Write the trace for https://ui.perfetto.dev and return the path."""
        from labkit.trace.perfetto import write_perfetto

        return write_perfetto(self.trace, path)


def ending(exit_code: int | None) -> str:
    """How a process ended, as a predicate: `was killed by SIGSEGV`."""
    if exit_code is None:
        return "was stopped"
    if exit_code < 0:
        import signal

        try:
            name = signal.Signals(-exit_code).name
        except ValueError:  # the number that a rank reports may be anything
            name = f"signal {-exit_code}"
        return f"was killed by {name}"
    return f"ended with exit code {exit_code}"
