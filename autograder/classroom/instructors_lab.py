"""The instructors' JupyterLab as a service of the hub: what `labkit teach` opens, for those who may enter."""

from __future__ import annotations

import os
import sys

from jupyterhub.singleuser.extension import JupyterHubSingleUser


def main() -> None:
    arguments = [f"--ServerApp.root_dir={os.environ['LABKIT_COURSE']}", "--ServerApp.log_level=WARN"]
    # the hub stops it by SIGINT, after which it would ask in a terminal whether to end
    arguments.append("--ServerApp.answer_yes=True")
    # the formgrader is a frame within JupyterLab's page; JupyterHub forbids frames, of any page
    arguments.append(
        "--ServerApp.tornado_settings={'headers': {'Content-Security-Policy': \"frame-ancestors 'self'\"}}"
    )
    if os.geteuid() == 0:
        arguments.append("--allow-root")
    sys.argv[1:] = arguments
    JupyterHubSingleUser.launch_instance()


if __name__ == "__main__":
    main()
