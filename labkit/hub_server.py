"""`python -m labkit.hub_server`: JupyterHub's single-user server with the lab's settings, in an image or a Slurm job.

The hub says by environment variables where home and exchange are; all arguments are passed on.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from labkit.catalogue import all_exercises
from labkit.challenges import sending
from labkit.jupyterlab import config_path, validation
from labkit.progress import LAB_EXTENSIONS, write_home
from labkit.start import own_copy


def main() -> None:
    """Become the server; does not return."""
    from jupyterhub.singleuser.extension import JupyterHubSingleUser

    home = Path.home()
    os.chdir(home)
    # where cells and terminals find `labkit`: the environment of a job or of a user need not name this one
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if exchange := os.environ.get(sending.EXCHANGE):
        os.environ["JUPYTER_CONFIG_PATH"] = str(_enrolled(Path(exchange)))
        validation.install()
    else:  # nobody releases notebooks to the learner
        for exercise in all_exercises():
            own_copy(exercise)
    with contextlib.suppress(OSError):  # on a full disk the server is needed to make room
        write_home()
    os.environ["JUPYTER_CONFIG_PATH"] = config_path("learning", home)
    options = [f"--ServerApp.root_dir={home}", f"--LabApp.extra_labextensions_path={LAB_EXTENSIONS}"]
    if os.geteuid() == 0:
        options.append("--allow-root")
    sys.argv[1:] = [*options, *sys.argv[1:]]
    JupyterHubSingleUser.launch_instance()


def _enrolled(exchange: Path) -> Path:
    """Write nbgrader's settings for a course; return their folder. exchange: the course's folder in the exchange."""
    folder = Path(tempfile.mkdtemp(prefix="labkit-course-"))
    (folder / "nbgrader_config.py").write_text(
        "c = get_config()\n"
        f"c.CourseDirectory.course_id = {exchange.name!r}\nc.Exchange.root = {str(exchange.parent)!r}\n"
    )
    return folder


if __name__ == "__main__":
    main()
