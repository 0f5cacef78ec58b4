"""`labkit start`: JupyterLab on the notebook to begin with."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

from labkit.cli import CommandError
from labkit.exercises import root

FIRST_NOTEBOOK = "notebooks/phase3_multi_node/ring_allreduce.ipynb"


def start(arguments: Sequence[str]) -> int:
    """Become JupyterLab, serving the course; `arguments` are passed on, and a notebook among them is opened instead.

    Raises `CommandError` when JupyterLab or the notebook is missing.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        raise CommandError("JupyterLab is not installed here: ./lab start installs it")
    options = []
    if not any(argument.endswith(".ipynb") for argument in arguments):
        notebook = root() / FIRST_NOTEBOOK
        if not notebook.is_file():
            raise CommandError(f"there is no notebook {notebook}; name another: labkit start NOTEBOOK.ipynb")
        options += [str(notebook), f"--ServerApp.root_dir={root()}"]
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        options.append("--no-browser")
    if os.geteuid() == 0:
        options.append("--allow-root")
    command = [sys.executable, "-m", "jupyterlab", *options, *arguments]
    sys.stdout.flush()
    os.execv(sys.executable, command)
