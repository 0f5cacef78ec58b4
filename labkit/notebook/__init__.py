"""The lab's magics, loaded by `%load_ext labkit`, and their displays.

One module for each magic or pair of magics; `magics.py` parses a magic's line and reports errors in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.notebook.run_each import run_each
from labkit.notebook.stepper import step_through

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["explore", "load_ipython_extension", "run_each", "step_through"]


def __getattr__(name: str) -> Any:
    """Import `explore` lazily: it needs torch, which loading the magics does not."""
    if name == "explore":
        from labkit.notebook.predicting import explore

        return explore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics in `shell`. May be called twice."""
    from labkit.clusters.forkserver import shared
    from labkit.notebook import choosing, exercising, failures, helping, past_runs, progress, questions, ranks, running

    failures.install()
    choice = choosing.Choice()
    run = (*running.magics(choice), *ranks.magics(choice), *past_runs.magics())
    exercise = (*exercising.magics(), *helping.magics(), *questions.magics(), *progress.magics())
    for magic in (*choosing.magics(choice), *run, *exercise):
        magic.register(shell)
    # unless `labkit.load_ipython_extension` has; it prepares itself while the learner reads the first paragraph
    shared().start()
