"""`python -m labkit.hub.server`: JupyterHub's single-user server with the lab's settings, wherever it runs.

The hub names home and exchange in environment variables; all arguments are passed on.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from labkit.catalogue import all_exercises
from labkit.challenges import sending
from labkit.jupyterlab import config_path, validation
from labkit.private_folders import cache_environment
from labkit.progress import LAB_EXTENSIONS, write_home
from labkit.start import own_copy


def serve(arguments: Sequence[str]) -> None:
    """Run the server until it ends."""
    from jupyterhub.singleuser.extension import JupyterHubSingleUser

    home, programs = Path.home(), str(Path(sys.executable).parent)
    os.chdir(home)
    # where cells find `labkit`: the environment of a job or of a user need not name this folder
    os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    os.environ.update(cache_environment(os.environ))
    if exchange := os.environ.get(sending.EXCHANGE):
        os.environ["JUPYTER_CONFIG_PATH"] = str(_enrolled(Path(exchange)))
        validation.install()
    else:  # nobody releases notebooks to the learner
        for exercise in all_exercises():
            own_copy(exercise)
    with contextlib.suppress(OSError):  # on a full disk the server is needed to make room
        write_home()  # also makes the link to the guides
    os.environ["JUPYTER_CONFIG_PATH"] = config_path("learning", home)
    options = [
        f"--ServerApp.root_dir={home}",
        f"--LabApp.extra_labextensions_path={LAB_EXTENSIONS}",
        f"--ServerApp.terminado_settings={ {'shell_command': terminal(programs)}!r}",
    ]
    if os.geteuid() == 0:
        options.append("--allow-root")
    sys.argv[1:] = [*options, *arguments]
    JupyterHubSingleUser.launch_instance()


def terminal(programs: str) -> list[str]:
    """Return the command of terminals: bash, with the settings of a login, which set PATH anew, and this folder."""
    return ["bash", "-l", "-c", f'PATH={shlex.quote(programs)}:"$PATH" exec bash']


def main() -> None:
    """Run the server with the arguments of the command."""
    serve(sys.argv[1:])


def _enrolled(exchange: Path) -> Path:
    """Write nbgrader's settings for a course; return their folder, which is removed at exit.

    exchange: the course's folder in the exchange.
    """
    folder = Path(tempfile.mkdtemp(prefix="labkit-course-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "nbgrader_config.py").write_text(
        "c = get_config()\n"
        f"c.CourseDirectory.course_id = {exchange.name!r}\nc.Exchange.root = {str(exchange.parent)!r}\n"
    )
    return folder


if __name__ == "__main__":
    main()
