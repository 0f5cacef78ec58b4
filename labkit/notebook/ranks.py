"""`%%ranks`: run a cell on ranks that stay alive and keep their state; `%ranks`: show, restart, push and pull."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from labkit import catalogue
from labkit.clusters import Cluster, InvalidJob, Job, OnOutput, OnState, Run, State, kinds
from labkit.clusters.live import Interrupted, LiveCluster, LiveRanks, RankState
from labkit.clusters.options import at_least_one, seconds, seconds_or_off
from labkit.clusters.rank_lists import named_ranks
from labkit.notebook.choosing import Choice
from labkit.notebook.idle_ranks import IdleTimer
from labkit.notebook.magics import Magic, variable
from labkit.notebook.output.lanes import Lanes
from labkit.notebook.output.stopping import PRESSED
from labkit.notebook.results import RankValues
from labkit.notebook.running import cell_job, run_shown, shown_values
from labkit.rank_output.failures import where_all_were

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_ACTIONS = ("status", "restart", "stop", "push", "pull")
_NONE_YET = "there are no live ranks yet: the first %%ranks starts them"


def magics(choice: Choice) -> list[Magic]:
    """`%%ranks` and `%ranks`, on live ranks of the cluster of `choice`."""
    kept = _NotebookRanks(choice)
    cell = Magic(
        "ranks",
        kept.run_cell,
        """Run this cell on ranks that stay alive: variables and process groups remain for the next cell.

        An error or an interrupt ends the cell, not the ranks. Lines that ranks print are shown as [rank] line; the
        value of the last line is returned from each rank. The first %%ranks starts the ranks, on the cluster chosen
        with %cluster. %ranks shows their status; %ranks restart starts new ones.
        """,
        kind="cell",
    )
    cell.option("-n", "--nproc-per-node", type=at_least_one, metavar="N",
                help="ranks per node, if this cell starts them; default: as set with %%%%cluster")  # fmt: skip
    cell.option("--ranks", type=_ranks, metavar="LIST", help="run only on these: 0,2 or 0-3,6")
    cell.option("-o", "--output", type=variable, metavar="NAME", help="store the Run in this variable: values, trace")
    cell.option("--timeout", type=seconds, metavar="S", help="interrupt the ranks after S seconds")
    cell.option("--hang-timeout", type=seconds_or_off, default=Job.hang_timeout, metavar="S",
                help="report a hang after S seconds without progress; 0 or off: never")  # fmt: skip
    cell.option("--on-hang", choices=("stop", "wait"), default=Job.on_hang,
                help="on a hang: interrupt, with a table of who waits for which rank, or only show it")  # fmt: skip
    cell.option("--push", type=_names, metavar="NAMES", help="notebook variables to set on the ranks before the cell")
    cell.option("--pull", type=_names, metavar="NAMES", help="rank variables to fetch after the cell, as lists")
    line = Magic(
        "ranks",
        kept.manage,
        """Show the live ranks' status; or: %ranks restart, %ranks stop, %ranks push NAME..., %ranks pull NAME...

        push sets notebook variables on every rank; pull makes a list of each rank's value in the notebook.
        Only tensors and plain data can be transferred.
        """,
        words=lambda: _ACTIONS,
    )
    line.option("action", nargs="?", choices=_ACTIONS, default="status", help="status when left out")
    line.option("-n", "--nproc-per-node", type=at_least_one, metavar="N", help="for restart: ranks per node")
    line.option("names", nargs="*", type=variable, metavar="NAME", help="for push and pull")
    return [cell, line]


class _NotebookRanks:
    """The live ranks of this notebook, if any, and their cluster."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._cluster: Cluster | None = None
        self._asked: int | None = None
        """Ranks per node, if different from the cluster's."""
        self._live: LiveRanks | None = None
        self._timer = IdleTimer(self._end_idle)
        self._idle_minutes = 0.0
        """Minutes after which the ranks were ended as idle, until the learner has been informed; else 0."""

    def run_cell(self, shell: InteractiveShell, options: argparse.Namespace, cell: str) -> RankValues | None:
        """`%%ranks`; see `_run_cell`."""
        with self._timer.in_use():
            self._say_that_they_were_idle()
            return self._run_cell(shell, options, cell)

    def manage(self, shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
        """`%ranks`."""
        with self._timer.in_use():
            self._say_that_they_were_idle()
            self._manage(shell, options, cell)

    def _end_idle(self, minutes: float) -> None:
        if self._stop():
            self._idle_minutes = minutes

    def _say_that_they_were_idle(self) -> None:
        if self._idle_minutes:
            print(
                f"the live ranks were ended: no cell has used them for {self._idle_minutes:g} minutes, the time that "
                "this site allows; their variables are lost"
            )
            self._idle_minutes = 0.0

    def _run_cell(self, shell: InteractiveShell, options: argparse.Namespace, cell: str) -> RankValues | None:
        """Run `cell` and return each rank's value, None when no rank has any. Raises `RankFailed`."""
        names = ("timeout", "hang_timeout", "on_hang")
        job = cell_job(shell, cell, **{name: getattr(options, name) for name in names})
        push = _of_notebook(shell, options.push or ())
        live = self._present(options.nproc_per_node)
        # if this run is interrupted, its name must not show the run before it
        shell.user_ns.pop(options.output, None)
        pulled: dict[str, dict[int, Any]] = {}

        def start(on_output: OnOutput, on_state: OnState) -> Run:
            nonlocal pulled
            try:
                run, pulled = self._ready(on_state).run(
                    job, options.ranks, on_output, on_state, push=push, pull=options.pull or ()
                )
            except Interrupted as interrupt:
                _tell(interrupt)
                raise
            return run

        if live is not None:
            _show_what_was_printed_meanwhile(live)
        world_size = len(options.ranks) if options.ranks else live.world_size if live else self._size()
        run = run_shown(shell, start, world_size=world_size, limit=options.timeout, kept=True)
        if options.output:
            shell.user_ns[options.output] = run
        run.raise_if_failed()
        _into_notebook(shell, pulled, options.pull or (), [result.rank for result in run.ranks])
        return shown_values(run, cell)

    def _manage(self, shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
        if options.action in ("push", "pull") and not options.names:
            raise UsageError(f"%ranks {options.action}: a variable is missing: %ranks {options.action} NAME")
        if options.action not in ("push", "pull") and options.names:
            raise UsageError(f"%ranks {options.action}: unexpected argument {options.names[0]!r}")
        if options.action != "restart" and options.nproc_per_node:
            raise UsageError(f"%ranks {options.action}: -n is for %ranks restart -n {options.nproc_per_node}")
        if options.action == "restart":
            self._stop()
            try:
                self._present(options.nproc_per_node)
                print(f"{_counted(self._ready().world_size)} started, without any variables yet")
            except KeyboardInterrupt as interrupt:
                text = "KeyboardInterrupt: no ranks were started"
                interrupt._render_traceback_ = lambda: [text]  # type: ignore[attr-defined]  # IPython looks there
                raise
        elif options.action == "stop":
            print("the ranks have ended" if self._stop() else "there were no live ranks")
            self._asked = None
        elif options.action == "push":
            values = _of_notebook(shell, options.names)
            self._standing().push(values)
        elif options.action == "pull":
            live = self._standing()
            _into_notebook(shell, live.pull(options.names), options.names, range(live.world_size))
        elif self._live is None:
            print(_NONE_YET)
        else:
            _show_what_was_printed_meanwhile(self._live)
            print(_table(self._live.states()))

    def _standing(self) -> LiveRanks:
        """The live ranks. Raises `UsageError` when there are none."""
        if self._live is None:
            raise UsageError(_NONE_YET)
        return self._ready()

    def _present(self, requested: int | None = None) -> LiveRanks | None:
        """The live ranks of the current cluster, if any; ends those of another cluster.

        requested: ranks per node, if given by the learner. Raises `UsageError` if the live ranks are not as many.
        """
        cluster = self._choice.cluster
        _keeping(cluster)
        if self._cluster != cluster:
            self._asked = None
        if self._live is not None and self._cluster != cluster:
            print(
                f"the cluster has changed: new ranks start; variables of the {self._live.world_size} old ones are lost"
            )
            self._stop()
        elif self._live is not None and not self._live.alive:
            print(f"all live ranks have died: {self._live.obituary}; new ones start; the old variables are lost")
            self._stop()
        if self._choice.chosen is None:
            print(self._choice.describe() + f"; {requested} per node requested" * bool(requested))
            self._choice.chosen = cluster
        if self._live is None:
            self._cluster, self._asked = cluster, requested or self._asked
        elif requested not in (None, self._asked or cluster.nproc_per_node):
            raise UsageError(
                f"{_counted(self._live.world_size)} already live: use %ranks restart -n {requested} to replace them"
            )
        return self._live

    def _ready(self, on_state: OnState | None = None) -> LiveRanks:
        """The live ranks, started if the current cluster has none."""
        live = self._present()
        if live is None:
            keeping = _keeping(self._choice.cluster)
            live = self._live = LiveRanks(keeping, _beginning(self._asked), on_state or _say_where_it_queues)
        return live

    def _size(self) -> int | None:
        """Number of ranks that the current cluster will have, or None if unknown."""
        cluster = self._choice.cluster
        sizes = (cluster.nnodes, self._asked or cluster.nproc_per_node)
        return sizes[0] * sizes[1] if isinstance(sizes[1], int) else None

    def _stop(self) -> bool:
        """End the live ranks, if any; return whether there were any."""
        live, self._live = self._live, None
        if live is not None:
            live.close()
        return live is not None


def _keeping(cluster: Cluster) -> LiveCluster:
    if not isinstance(cluster, LiveCluster):
        *some, last = (f"%cluster {name}" for name in sorted(kinds.with_ability(LiveCluster)))
        raise InvalidJob(
            f"ranks cannot stay alive between cells yet on this cluster ({cluster.describe()}): use %%torchrun, or "
            f"choose {', '.join(some)} or {last}"
        )
    return cluster


def _say_where_it_queues(state: State) -> None:
    if state.phase == "queued":
        print(state.text)


def _beginning(nproc_per_node: int | None) -> Job:
    return Job(source="", modules=catalogue.current_modules(), nproc_per_node=nproc_per_node)


def _of_notebook(shell: InteractiveShell, names: Sequence[str]) -> dict[str, Any]:
    for name in names:
        if name not in shell.user_ns:
            raise UsageError(f"{name} is not defined in the notebook, so it cannot be pushed to the ranks")
    return {name: shell.user_ns[name] for name in names}


def _into_notebook(
    shell: InteractiveShell, pulled: dict[str, dict[int, Any]], names: Sequence[str], ranks: Sequence[int]
) -> None:
    for name in names:
        values = pulled.get(name, {})
        missing = [rank for rank in ranks if rank not in values]
        if missing:
            raise UsageError(f"{name} is not defined on {named_ranks(missing)}")
        shell.user_ns[name] = RankValues([values[rank] for rank in ranks], ranks)


def _show_what_was_printed_meanwhile(live: LiveRanks) -> None:
    """Show the output of threads that a cell has left running."""
    printed = live.printed_meanwhile()
    if printed:
        lanes = Lanes(in_order=False)
        for piece in printed:
            lanes.feed(*piece)
        sys.stdout.write(f"printed since the last cell:\n{lanes.close()}")


def _tell(interrupt: Interrupted) -> None:
    """Add to the interrupt, as IPython shows it, where all ranks were and whether their state is kept."""
    run = interrupt.run
    killed = [result.rank for result in run.ranks if result.exit is None]
    interrupt.args = (f"{_counted(len(run.ranks))} interrupted" + "; their variables are kept" * (not killed),)
    lines = [f"KeyboardInterrupt: {interrupt}", *where_all_were(run), *run.notes]
    interrupt._render_traceback_ = lambda: [  # type: ignore[attr-defined]  # IPython looks there
        *lines,
        *({PRESSED} & set(getattr(interrupt, "__notes__", ()))),  # the note is added later
    ]


def _table(states: Sequence[RankState]) -> str:
    """A table with a line for each rank."""
    rows = [("rank", "state", "process", "memory", "last cell")]
    for state in states:
        memory = f"{state.memory / 1e6:.0f} MB" if state.memory else ""
        alive = "alive" if state.alive else state.ended
        rows.append((str(state.rank), alive, str(state.pid or ""), memory, state.last or "none yet"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _counted(count: int) -> str:
    return f"{count} rank{'s' * (count > 1)}"


def _ranks(text: str) -> list[int]:
    """Parse `0,2` or `0-3,6`; a type for argparse."""
    numbers: list[int] = []
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"expected ranks such as 0,2 or 0-3, got {text!r}")
        numbers += range(int(first), int(last or first) + 1)
    return sorted(set(numbers))


def _names(text: str) -> list[str]:
    return [variable(name) for name in text.replace(" ", "").split(",")]
