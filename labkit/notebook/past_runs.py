"""`%runs`: list the runs of this notebook, or show one run's output again."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.display import display

from labkit.clusters.options import at_least_one
from labkit.notebook.magics import Magic
from labkit.notebook.output.display import shown_path
from labkit.notebook.output.progress import duration
from labkit.notebook.output.runs import runs

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def magics() -> list[Magic]:
    """The magic."""
    magic = Magic(
        "runs",
        _runs,
        """List the last runs of this notebook, and the files with the full output of their ranks.

        With the number of a cell, show the output of its run again, for example after the page was closed.

        %runs
        %runs 12
        """,
        words=lambda: [str(record.cell) for record in runs.all],
    )
    magic.option("cell", nargs="?", type=at_least_one, metavar="CELL", help="number of the cell, as in In[12]")
    return [magic]


def _runs(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
    if options.cell is None:
        print(_table())
        return
    record = runs.of_cell(options.cell)
    if record is None:
        known = ", ".join(f"{record.cell}" for record in runs.all) or "none yet"
        raise UsageError(f"%runs: cell {options.cell} has no known run; cells with runs: {known}")
    sys.stdout.write(record.text)
    if record.result:
        display({"text/plain": record.result}, raw=True)
    if record.error:
        print("\n".join(record.error[2]))


def _table() -> str:
    rows = [
        (
            f"In[{record.cell}]",
            record.ranks,
            duration(record.seconds),
            record.ended,
            shown_path(record.logs) if record.logs else "nothing was printed",
        )
        for record in runs.all
    ]
    if not rows:
        return "no cell has run on ranks yet"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
