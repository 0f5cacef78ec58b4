"""The instructors' JupyterLab as a service of the hub: what `labkit teach` opens, for those who may enter."""

from __future__ import annotations

import os
import sys

from jupyter_server.base.handlers import JupyterHandler
from jupyterhub.singleuser.extension import JupyterHubSingleUser
from nbgrader.server_extensions.formgrader.handlers import SubmissionFilesHandler


def _sandboxed(handler: JupyterHandler) -> str:
    """Return the policy of pages of submissions: their scripts have no origin, so no rights, as in JupyterLab's."""
    policy = JupyterHandler.content_security_policy.fget(handler)  # type: ignore[attr-defined]  # it is a property
    return f"{policy}; sandbox allow-scripts"


def main() -> None:
    # it shows any file of the course, those of submissions too, as a page of the formgrader
    SubmissionFilesHandler.content_security_policy = property(_sandboxed)
    arguments = [f"--ServerApp.root_dir={os.environ['LABKIT_COURSE']}", "--ServerApp.log_level=WARN"]
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
