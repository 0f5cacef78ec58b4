"""Show failed runs in notebooks, with cells by their numbers, and name the page that explains an error."""

from __future__ import annotations

from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

from labkit.clusters import RankFailed, Run
from labkit.notebook.explaining import page_about
from labkit.rank_output import failures


def install(shell: InteractiveShell) -> None:
    """Make IPython show `RankFailed` with `render`, and name the page that explains an error, if there is one.

    Done here since labkit.clusters does not depend on notebooks. May be called twice.
    """
    RankFailed._render_traceback_ = lambda error: [*render(error.run), *_more(error)]  # type: ignore[attr-defined]
    if _after_cell not in shell.events.callbacks["post_run_cell"]:
        shell.events.register("post_run_cell", _after_cell)


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
