"""Magics of the lab, loaded by `%load_ext labkit`, and what they show.

One module for each magic or pair of them; `magics.py` says how a magic parses its line and answers what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.notebook.stepper import step_through

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["explore", "load_ipython_extension", "step_through"]


def __getattr__(name: str) -> Any:
    """`explore` brings torch with it, which a kernel that only loads the magics does without."""
    if name == "explore":
        from labkit.notebook.predicting import explore

        return explore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Make the magics known to `shell`. Loading twice does no harm."""
    from labkit.clusters.warm import shared
    from labkit.notebook import choosing, exercising, failures, helping, past_runs, ranks, running

    failures.install()
    choice = choosing.Choice()
    run = (*running.magics(choice), *ranks.magics(choice), *past_runs.magics())
    for magic in (*choosing.magics(choice), *run, *exercising.magics(), *helping.magics()):
        magic.register(shell)
    # it imports torch while the learner reads the first paragraph
    shared().start()
