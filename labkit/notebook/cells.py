"""Source of the running cell: its position and its syntax errors."""

from __future__ import annotations

import traceback
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


class CellSyntaxError(Exception):
    """The cell does not parse. A real `SyntaxError` would be shown with labkit's own frames."""

    def __init__(self, error: SyntaxError, hint: str = "") -> None:
        super().__init__(f"{error.msg} ({error.filename}, line {error.lineno})")
        self._error = error
        self._hint = hint

    def _render_traceback_(self) -> list[str]:
        """The error as IPython shows it: place, line, arrow, message."""
        place, *rest = "".join(traceback.format_exception_only(self._error)).rstrip().splitlines()
        shown = [place.replace(f'File "{self._error.filename}"', f"{self._error.filename}"), *rest]
        return [*shown, self._hint] if self._hint else shown


def cell_name(shell: InteractiveShell) -> str:
    """Name of the running cell in tracebacks: `Cell In[3]`."""
    return f"Cell In[{prompt_number(shell)}]"


def prompt_number(shell: InteractiveShell) -> int:
    """The number of the cell that is running."""
    # not shell.execution_count: IPython 9 has already incremented it, IPython 8 has not
    return int(shell.displayhook.prompt_count)


def running_cell(shell: InteractiveShell) -> str:
    """The text of the running cell, as it was written."""
    history = shell.history_manager
    return history.input_hist_raw[-1] if history is not None and history.input_hist_raw else ""


def lines_above(shell: InteractiveShell, cell: str) -> list[str]:
    """The lines of the running cell above `cell`, the body of its magic; at least the magic's own line."""
    raw = running_cell(shell)
    body = cell.rstrip()
    if body and raw.rstrip().endswith(body):
        return str(raw.rstrip()[: -len(body)]).split("\n")[:-1]
    return [""]


def require_syntax(cell: str, filename: str, first_line: int) -> None:
    """Raise `CellSyntaxError`, with the line as the learner counts it, unless `cell` compiles."""
    padded = "\n" * (first_line - 1) + cell
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks will show them
            compile(padded, filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        if error.text is None and error.lineno:  # found after parsing, such as a return outside a function
            error.text = padded.split("\n")[error.lineno - 1]
        line = (error.text or "").lstrip()
        hint = "This cell is plain Python: magics and ! do not work in it." if line.startswith(("%", "!")) else ""
        if error.msg.startswith("'await' outside") or error.msg.startswith("asynchronous"):
            hint = "This cell is plain Python: use await in an async function, and run that with asyncio.run(...)."
        raise CellSyntaxError(error, hint) from None
    except ValueError as error:  # null bytes
        raise CellSyntaxError(SyntaxError(str(error), (filename, first_line, 1, ""))) from None
