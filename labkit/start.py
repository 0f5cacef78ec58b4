"""`labkit start`: JupyterLab on the learner's own copies of the notebooks, opened on the course home.

`notebooks/` contains the solved notebooks. A learner gets copies in the workspace, with the solutions removed as in an
nbgrader release. They are made once and never overwritten.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

from labkit.catalogue import Exercise, all_exercises, root, workspace
from labkit.command_line.commands import CommandError
from labkit.jupyterlab import Role, config_path
from labkit.progress import LAB_EXTENSIONS, write_home


def start(arguments: Sequence[str]) -> NoReturn:
    """Become JupyterLab, opened on the notebook named in `arguments`, else on the course home.

    All other arguments are passed on. Raises `CommandError` when JupyterLab or the notebook is missing.
    """
    named = [argument for argument in arguments if argument.endswith(".ipynb")]
    course = root().resolve()
    copies = [own_copy(exercise) for exercise in all_exercises()]
    if not named and not any(copy.is_file() for copy in copies):
        raise CommandError(f"there is no notebook in {root() / 'notebooks'}; name one: labkit start NOTEBOOK.ipynb")
    opened = Path(named[0]).resolve() if named else write_home().resolve()
    if not opened.is_file():
        raise CommandError(f"there is no notebook {opened}")
    folder = course if opened.is_relative_to(course) else opened.parent
    url = f"/lab/tree/{quote(opened.relative_to(folder).as_posix())}"
    become_jupyterlab(folder, url, [argument for argument in arguments if argument not in named])


def become_jupyterlab(folder: Path, url: str, arguments: Sequence[str], role: Role = "learning") -> NoReturn:
    """Replace this process with JupyterLab on the files of `folder`, opened at `url`. `arguments` are passed on.

    Raises `CommandError` when it is not installed.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        raise CommandError("JupyterLab is not installed here: ./lab start installs it")
    os.environ["JUPYTER_CONFIG_PATH"] = config_path(role, folder)
    # the address that is printed leads there, too, for users without a display
    options = [f"--ServerApp.root_dir={folder}", f"--LabApp.default_url={url}"]
    options.append(f"--LabApp.extra_labextensions_path={LAB_EXTENSIONS}")  # shows the course home
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        options.append("--no-browser")
    if os.geteuid() == 0:
        options.append("--allow-root")
    os.execv(sys.executable, [sys.executable, "-P", "-m", "labkit.jupyterlab", *options, *arguments])


def own_copy(exercise: Exercise) -> Path:
    """The learner's copy of an exercise's notebook; made if missing.

    Returns the solved notebook's path if neither exists.
    """
    solved = exercise.notebook
    copy = workspace() / exercise.notebook_name
    if not copy.exists() and solved.is_file():
        import nbformat
        from nbgrader.preprocessors import ClearOutput, ClearSolutions

        notebook = nbformat.read(solved, as_version=4)
        clear = ClearSolutions()
        # in an image the course's notebooks are released; nbgrader would empty their exercise cells
        released = not any(clear.begin_solution_delimeter in cell.source for cell in notebook.cells)
        for preprocessor in (ClearOutput(),) if released else (clear, ClearOutput()):
            notebook, _ = preprocessor.preprocess(notebook, {})
        copy.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, copy)
    return copy if copy.exists() else solved
