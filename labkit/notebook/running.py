"""`%%torchrun`: a cell on fresh ranks of the cluster."""

from __future__ import annotations

import argparse
import dataclasses
import linecache
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from labkit import catalogue
from labkit.clusters import Job, OnOutput, OnState, Run
from labkit.clusters.cluster import ModelledCluster
from labkit.notebook import failures, launching, names
from labkit.notebook.cells import cell_name, lines_above, prompt_number, require_syntax
from labkit.notebook.choosing import Choice
from labkit.notebook.magics import Magic, variable
from labkit.notebook.output.display import RunDisplay
from labkit.notebook.output.live import LiveView
from labkit.notebook.output.progress import ranks_in_words
from labkit.notebook.output.reopening import answering
from labkit.notebook.output.runs import Record, runs
from labkit.notebook.output.stopping import PRESSED, Stop
from labkit.notebook.results import RankValues
from labkit.notebook.screen import Watch, in_notebook, is_watched

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def magics(choice: Choice) -> list[Magic]:
    """`%%torchrun` on the cluster of `choice`."""

    def run(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> RankValues | None:
        return run_cell(shell, choice, options, cell)

    magic = Magic(
        "torchrun",
        run,
        """Run this cell on new ranks of the cluster, as a script under torchrun.

        Each rank has torchrun's environment (RANK, WORLD_SIZE, ...), so the cell begins with
        torch.distributed.init_process_group(). Lines that ranks print are shown as [rank] line; the value of the last
        line is returned from each rank. When a rank fails, all are stopped.
        """,
        kind="cell",
    )
    launching.add_options(magic)
    magic.option("-o", "--output", type=variable, metavar="NAME", help="store the Run in this variable: values, trace")
    return [magic]


def run_cell(shell: InteractiveShell, choice: Choice, options: argparse.Namespace, cell: str) -> RankValues | None:
    """Run `cell` and return each rank's value, None when no rank has any. Raises `RankFailed`, `CellSyntaxError`."""
    job = cell_job(shell, cell, **launching.job_options(options))
    cluster = choice.cluster
    if launching.instead_of_running(options, cluster, cell, prompt_number(shell)):
        return None
    if choice.chosen is None:
        print(choice.describe())
        choice.chosen = cluster
    # if this run is interrupted, its name must not show the run before it
    shell.user_ns.pop(options.output, None)
    nnodes, nproc_per_node = job.nnodes or cluster.nnodes, job.nproc_per_node or cluster.nproc_per_node
    run = run_shown(
        shell,
        lambda on_output, on_state: cluster.run(job, on_output, on_state),
        world_size=nnodes * nproc_per_node if isinstance(nproc_per_node, int) else None,
        nnodes=nnodes,
        in_order=isinstance(cluster, ModelledCluster),
        limit=job.timeout or getattr(cluster, "timeout", None),
    )
    if options.output:
        shell.user_ns[options.output] = run
    run.raise_if_failed()
    return shown_values(run, cell)


def cell_job(shell: InteractiveShell, cell: str, **options: Any) -> Job:
    """The running cell as a job, with the other fields of `Job` as `options`. Raises `CellSyntaxError`."""
    filename, first_line = cell_name(shell), len(lines_above(shell, cell)) + 1
    require_syntax(cell, filename, first_line)
    # to show the lines around a failing one
    padded = "\n" * (first_line - 1) + cell
    linecache.cache[filename] = (len(padded), None, padded.splitlines(keepends=True), filename)
    return Job(source=cell, filename=filename, first_line=first_line, modules=catalogue.current_modules(), **options)


def run_shown(
    shell: InteractiveShell,
    start: Callable[[OnOutput, OnState], Run],
    *,
    world_size: int | None,
    nnodes: int = 1,
    in_order: bool = False,
    limit: float | None = None,
    kept: bool = False,
) -> Run:
    """Call `start(on_output, on_state)` and return its `Run`; meanwhile, show the ranks' output and the job's state.

    world_size: number of ranks; None if not known yet.
    nnodes: with several nodes, lines name theirs: `[1:4-7]`.
    in_order: ranks run one at a time, as virtual ones do.
    limit: seconds after which the run will be stopped, for the display.
    kept: the ranks stay alive after this cell.
    The output stays even if `start` raises. `KeyboardInterrupt` reports how many ranks were stopped.
    """
    seen = RunDisplay(world_size, nnodes, in_order, limit, catalogue.workspace() / "logs")
    stop = Stop()
    record = Record(prompt_number(shell), ranks_in_words(world_size))
    runs.add(record)
    began = time.monotonic()

    def last() -> str:
        seen.logs.close()
        record.text = seen.lanes.close()
        return record.text

    view = LiveView(shell, record, stop.press) if in_notebook(shell) and is_watched(shell) else None
    try:
        with answering(shell), Watch(shell, seen.now, last, view):
            try:
                run = start(seen.on_output, seen.on_state)
            finally:
                stop.close()
        run = dataclasses.replace(run, logs=seen.logs.folder, advice=names.advice(shell, run, kept))
        record.text += "".join(f"note: {note}\n" for note in run.notes)
        record.ended = "succeeded" if run.ok else run.diagnosis().splitlines()[0]
        record.error = None if run.ok else ("RankFailed", run.diagnosis(), failures.render(run))
    except BaseException as error:
        name = record.ended = type(error).__name__
        shown = [f"{name}: {error}"]
        if isinstance(error, KeyboardInterrupt):
            name, record.ended = "KeyboardInterrupt", "stopped with the Stop button" if stop.pressed else "interrupted"
            shown = _interrupted(error, ranks_in_words(world_size), stop.pressed)
        record.error = (name, str(error), shown)
        raise
    finally:
        record.logs, record.seconds = seen.logs.folder, time.monotonic() - began
        record.tell()
    for note in run.notes:
        print(f"note: {note}")
    return run


def _interrupted(interrupt: KeyboardInterrupt, ranks: str, pressed: bool) -> list[str]:
    """Lines that show the interrupt, now and in the record; notes on where ranks were, unless it has its own lines."""
    notes = list(getattr(interrupt, "__notes__", ()))
    if pressed:
        interrupt.add_note(PRESSED)
    if not hasattr(interrupt, "_render_traceback_"):
        interrupt.args = (f"{ranks} stopped" + " with the Stop button" * pressed,)
        lines = [f"KeyboardInterrupt: {interrupt}", *notes]
        interrupt._render_traceback_ = lambda: lines  # type: ignore[attr-defined]  # IPython looks there
    shown: list[str] = interrupt._render_traceback_()  # type: ignore[attr-defined]
    return shown


def shown_values(run: Run, cell: str) -> RankValues | None:
    """Each rank's value as the result of `cell`; None when it ends in a semicolon, or no rank has any."""
    if cell.rstrip().endswith(";") or all(value is None for value in run.values):
        return None
    values = RankValues(run.values, [result.rank for result in run.ranks])
    record = runs.all[-1]
    record.result = repr(values)
    record.tell()
    return values
