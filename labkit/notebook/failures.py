"""Show failed runs and interrupts in notebooks by the learner's lines, and name the page that explains an error."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from types import TracebackType

from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

from labkit.catalogue import workspace
from labkit.clusters import RankFailed, Run
from labkit.command_line.commands import LabFailed
from labkit.notebook.explaining import page_about
from labkit.rank_output import failures

_LAB = f"{Path(__file__).parents[1]}{os.sep}"
"""Where the lab's own frames are."""


def install(shell: InteractiveShell) -> None:
    """Make IPython show `RankFailed` with `render`, an interrupt at the learner's line, what a misspelt magic may mean,
    and the page that explains an error, if there is one.

    The lab's own failures are one line, without a traceback. Done here since labkit.clusters does not depend on
    notebooks. May be called twice.
    """
    shell.set_custom_exc((KeyboardInterrupt, UsageError), _shown_by_lab)
    RankFailed._render_traceback_ = lambda error: [*render(error.run), *_more(error)]  # type: ignore[attr-defined]
    LabFailed._render_traceback_ = lambda error: [error.in_words()]  # type: ignore[attr-defined]
    if _after_cell not in shell.events.callbacks["post_run_cell"]:
        shell.events.register("post_run_cell", _after_cell)


def _shown_by_lab(
    shell: InteractiveShell,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    tb_offset: int | None = None,
) -> None:
    """Show an interrupt without the lab's frames, and those of libraries that it was in; help with a misspelt magic."""
    if isinstance(error, UsageError):
        shell.show_usage_error(UsageError(f"{error}{_magic_meant(str(error), shell)}"))
    else:
        shell.showtraceback((kind, error, _of_learner(trace, shell)), tb_offset=tb_offset)


def _magic_meant(message: str, shell: InteractiveShell) -> str:
    """` Did you mean %%torchrun?` for IPython's message about a magic that does not exist; else empty."""
    found = re.match(r"(Cell|Line) magic (?:function )?`(%+)(\w+)` not found", message)
    if found is None:
        return ""
    known = shell.magics_manager.magics["cell" if found[1] == "Cell" else "line"]
    close = difflib.get_close_matches(found[3], list(known), n=1)
    return f" Did you mean {found[2]}{close[0]}?" if close else ""


def _of_learner(trace: TracebackType | None, shell: InteractiveShell) -> TracebackType | None:
    """The traceback without frames of labkit, and without what they call, but for the learner's own functions."""
    kept: list[TracebackType] = []
    within_lab = False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(_LAB):
            within_lab = True
        elif not within_lab or shell.compile.format_code_name(file) or Path(file).is_relative_to(workspace()):
            within_lab = False
            kept.append(trace)
        trace = trace.tb_next
    below: TracebackType | None = None
    for one in reversed(kept):
        below = TracebackType(below, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return below


def _after_cell(result: ExecutionResult) -> None:
    """Name the page about an error of the notebook's own process, below IPython's traceback."""
    error = result.error_in_exec
    if error is not None and not isinstance(error, RankFailed):
        print(*_more(error), sep="", end="")


def _more(error: BaseException) -> list[str]:
    """A line on the page that `%explain` shows; empty if there is none."""
    page = page_about(error)
    return [] if page is None else [f"{failures.GREEN}more:{failures.END} %explain shows “{page.title}”"]


def render(run: Run) -> list[str]:
    """The lines that IPython shows instead of a traceback."""
    return failures.render(run, _cell)


def _cell(file: str) -> str:
    """`Cell In[3]` for IPython's temporary name of a cell's code; any other name unchanged."""
    shell = InteractiveShell.instance() if InteractiveShell.initialized() else None
    return " ".join((shell and shell.compile.format_code_name(file)) or [file])
