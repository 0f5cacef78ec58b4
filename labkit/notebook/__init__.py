"""The lab's magics, loaded by `%load_ext labkit`, and their displays.

One module for each magic or pair of magics; `magics.py` parses a magic's line and reports errors in it.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from labkit.exercise_cells import without_comments_above
from labkit.hub import idle_minutes, notices
from labkit.lazy_names import lazy_names
from labkit.private_folders import cache_environment

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from labkit.notebook.predicting import explore as explore
    from labkit.notebook.several_runs import run_each as run_each
    from labkit.notebook.stepper import step_through as step_through

__all__ = ["explore", "load_ipython_extension", "run_each", "step_through"]
_NOTICE_SECONDS = 600.0
"""Age of a notice of the hub that a new kernel still shows."""
# looked up at first use: sliders over a prediction need no torch, whose import takes seconds
_PUBLIC = {"explore": ".predicting", "run_each": ".several_runs", "step_through": ".stepper"}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _PUBLIC)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics in `shell`. May be called twice."""
    from labkit.clusters.forkserver.client import shared
    from labkit.notebook import (
        choosing,
        exercising,
        explaining,
        failures,
        helping,
        monitoring,
        past_runs,
        progress,
        questions,
        ranks,
        running,
        searching,
    )

    os.environ.update(cache_environment(os.environ))  # the kernel compiles, too, and its programs may
    failures.install(shell)
    if without_comments_above not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(without_comments_above)
    choice = choosing.Choice()
    run = (*running.magics(choice), *ranks.magics(choice), *past_runs.magics(), *monitoring.magics())
    exercise = (*exercising.magics(), *helping.magics(), *questions.magics(), *progress.magics())
    pages = (*explaining.magics(), *searching.magics())
    for magic in (*choosing.magics(choice), *run, *exercise, *pages):
        magic.register(shell)
    # after the hub has ended a kernel, JupyterLab starts another one, in which this is the first that runs
    for notice in notices.since(time.time() - _NOTICE_SECONDS):
        print(notice)
    # `labkit.load_ipython_extension` may have started it; it imports torch while the learner reads the first paragraph
    if not idle_minutes.allowed():
        shared().start()
