"""Show failed runs in notebooks, with cells by their numbers."""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell

from labkit.clusters import RankFailed, Run
from labkit.rank_output import failures


def install() -> None:
    """Make IPython show `RankFailed` with `render`. Done here since labkit.clusters does not depend on notebooks."""
    RankFailed._render_traceback_ = lambda error: render(error.run)  # type: ignore[attr-defined]


def render(run: Run) -> list[str]:
    """The lines that IPython shows instead of a traceback."""
    return failures.render(run, _cell)


def _cell(file: str) -> str:
    """`Cell In[3]` for IPython's temporary name of a cell's code; any other name unchanged."""
    shell = InteractiveShell.instance() if InteractiveShell.initialized() else None
    return " ".join((shell and shell.compile.format_code_name(file)) or [file])
