"""`%%ranks`, a cell on ranks that stay and keep what it defines; `%ranks`, how they stand, and values for them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from labkit.clusters import Cluster, InvalidJob, Job, OnOutput, OnState, Run, State
from labkit.clusters.live import Interrupted, KeepsRanks, LiveRanks, RankState
from labkit.clusters.run import ranges
from labkit.notebook import failures
from labkit.notebook.choosing import Choice
from labkit.notebook.magics import Magic, at_least_one, seconds, seconds_or_off, variable
from labkit.notebook.output.lanes import Lanes
from labkit.notebook.output.stopping import PRESSED
from labkit.notebook.results import RankValues
from labkit.notebook.running import cell_job, modules_under_work, run_shown, shown_values

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_ACTIONS = ("status", "restart", "stop", "push", "pull")
_NONE_YET = "there are no live ranks yet: the first %%ranks starts them"


def magics(choice: Choice) -> list[Magic]:
    """`%%ranks` and `%ranks`, on live ranks of the cluster of `choice`."""
    kept = _Kept(choice)
    cell = Magic(
        "ranks",
        kept.run_cell,
        """Run this cell on ranks that stay alive: variables and process groups are there in the next cell.

        An error or an interrupt ends the cell, not the ranks. Lines that ranks print are shown as [rank] line; the
        value of the last line comes back from each rank. The first %%ranks starts the ranks, on the cluster that
        %cluster has chosen. %ranks shows how they stand; %ranks restart starts all of them afresh.
        """,
        kind="cell",
    )
    cell.option("-n", "--nproc-per-node", type=at_least_one, metavar="N",
                help="when this cell starts the ranks: so many on each node; else as %%%%cluster says")  # fmt: skip
    cell.option("--ranks", type=_ranks, metavar="LIST", help="only these: 0,2 or 0-3,6")
    cell.option("-o", "--output", type=variable, metavar="NAME", help="keep the Run in this variable: values, trace")
    cell.option("--timeout", type=seconds, metavar="S", help="interrupt the ranks after so many seconds")
    cell.option("--hang-timeout", type=seconds_or_off, default=Job.hang_timeout, metavar="S",
                help="call it a hang when nothing has moved for so many seconds; 0 or off: never")  # fmt: skip
    cell.option("--on-hang", choices=("stop", "wait"), default=Job.on_hang,
                help="when they hang: interrupt, with a table of who waits for whom, or show it and wait")  # fmt: skip
    cell.option("--push", type=_names, metavar="NAMES", help="variables of the notebook to set on the ranks before")
    cell.option("--pull", type=_names, metavar="NAMES", help="variables of the ranks to fetch afterwards, as lists")
    line = Magic(
        "ranks",
        kept.manage,
        """How the live ranks stand; or: %ranks restart, %ranks stop, %ranks push NAME..., %ranks pull NAME...

        push sets variables of the notebook on every rank; pull makes a list in the notebook of each rank's value.
        Tensors and plain data travel.
        """,
        words=lambda: _ACTIONS,
    )
    line.option("action", nargs="?", choices=_ACTIONS, default="status", help="status when left out")
    line.option("-n", "--nproc-per-node", type=at_least_one, metavar="N", help="for restart: ranks on each node")
    line.option("names", nargs="*", type=variable, metavar="NAME", help="for push and pull")
    return [cell, line]


class _Kept:
    """The live ranks of this notebook, if there are any, and the cluster that they are of."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._cluster: Cluster | None = None
        self._asked: int | None = None
        """How many ranks there are on each node, where that is not what the cluster says."""
        self._live: LiveRanks | None = None

    def run_cell(self, shell: InteractiveShell, options: argparse.Namespace, cell: str) -> RankValues | None:
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

    def manage(self, shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
        """`%ranks`."""
        if options.action in ("push", "pull") and not options.names:
            raise UsageError(f"%ranks {options.action}: name what is to be sent: %ranks {options.action} NAME")
        if options.action not in ("push", "pull") and options.names:
            raise UsageError(f"%ranks {options.action}: {options.names[0]!r} is one argument too many")
        if options.action != "restart" and options.nproc_per_node:
            raise UsageError(f"%ranks {options.action}: -n is for %ranks restart -n {options.nproc_per_node}")
        if options.action == "restart":
            self._stop()
            try:
                self._present(options.nproc_per_node)
                print(f"{_counted(self._ready().world_size)} started, with nothing defined yet")
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

    def _present(self, asked: int | None = None) -> LiveRanks | None:
        """The live ranks of the present cluster, if there are any; those of another are ended.

        asked: ranks on each node, where the learner says it. Raises `UsageError` when there are not as many.
        """
        cluster = self._choice.cluster
        _keeping(cluster)
        if self._cluster != cluster:
            self._asked = None
        if self._live is not None and self._cluster != cluster:
            print(f"the cluster has changed: new ranks start, and what the {self._live.world_size} before held is gone")
            self._stop()
        elif self._live is not None and not self._live.alive:
            print(f"all live ranks have died: {self._live.obituary}; new ones start, and what they held is gone")
            self._stop()
        if self._choice.chosen is None:
            print(self._choice.describe() + f"; {asked} are asked for here" * bool(asked))
            self._choice.chosen = cluster
        if self._live is None:
            self._cluster, self._asked = cluster, asked or self._asked
        elif asked not in (None, self._asked or cluster.nproc_per_node):
            raise UsageError(
                f"{_counted(self._live.world_size)} are live already: %ranks restart -n {asked} starts others"
            )
        return self._live

    def _ready(self, on_state: OnState | None = None) -> LiveRanks:
        """The live ranks, started if there are none on the present cluster."""
        live = self._present()
        if live is None:
            keeping = _keeping(self._choice.cluster)
            live = self._live = LiveRanks(keeping, _beginning(self._asked), on_state or _say_where_it_queues)
        return live

    def _size(self) -> int | None:
        """How many ranks the present cluster is going to have, as far as that is known."""
        cluster = self._choice.cluster
        sizes = (cluster.nnodes, self._asked or cluster.nproc_per_node)
        return sizes[0] * sizes[1] if isinstance(sizes[1], int) else None

    def _stop(self) -> bool:
        """End the live ranks, if there are any."""
        live, self._live = self._live, None
        if live is not None:
            live.close()
        return live is not None


def _keeping(cluster: Cluster) -> KeepsRanks:
    if not hasattr(cluster, "keep"):
        raise InvalidJob(
            f"ranks of a {cluster.kind} cluster do not stay between cells yet: use %%torchrun there, or choose "
            "%cluster local, %cluster slurm or %cluster virtual"
        )
    return cluster  # type: ignore[return-value]  # it has what is asked for


def _say_where_it_queues(state: State) -> None:
    if state.phase == "queued":
        print(state.text)


def _beginning(nproc_per_node: int | None) -> Job:
    return Job(source="", modules=modules_under_work(), nproc_per_node=nproc_per_node)


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
            raise UsageError(f"{name} is not defined on rank{'s' * (len(missing) > 1)} {ranges(missing)}")
        shell.user_ns[name] = RankValues([values[rank] for rank in ranks], ranks)


def _show_what_was_printed_meanwhile(live: LiveRanks) -> None:
    """By threads that a cell has left running."""
    printed = live.printed_meanwhile()
    if printed:
        lanes = Lanes(in_order=False)
        for piece in printed:
            lanes.feed(*piece)
        sys.stdout.write(f"printed since the last cell:\n{lanes.close()}")


def _tell(interrupt: Interrupted) -> None:
    """Have it say, to IPython too, where all were, and what is left of them."""
    run = interrupt.run
    killed = [result.rank for result in run.ranks if result.exit is None]
    interrupt.args = (f"{_counted(len(run.ranks))} interrupted" + "; what they hold is kept" * (not killed),)
    lines = [f"KeyboardInterrupt: {interrupt}", *failures.where_all_were(run), *run.notes]
    interrupt._render_traceback_ = lambda: [  # type: ignore[attr-defined]  # IPython looks there
        *lines,
        *({PRESSED} & set(getattr(interrupt, "__notes__", ()))),  # which is known later
    ]


def _table(states: Sequence[RankState]) -> str:
    """A line for each rank, or for all that stand alike but for their numbers."""
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
    """`0,2` or `0-3,6`, as argparse wants its types."""
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"ranks such as 0,2 or 0-3 are needed, got {text!r}")
        found += range(int(first), int(last or first) + 1)
    return sorted(set(found))


def _names(text: str) -> list[str]:
    return [variable(name) for name in text.replace(" ", "").split(",")]
