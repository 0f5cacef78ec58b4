"""Pages of submissions in the formgrader have no rights.

The formgrader serves any file of the course, those of submissions too, as a page at its own address.
"""

from __future__ import annotations

from jupyter_server.base.handlers import JupyterHandler
from nbgrader.server_extensions.formgrader.handlers import SubmissionFilesHandler


def _sandboxed(handler: JupyterHandler) -> str:
    """Return the policy of pages of submissions: their scripts have no origin, so no rights, as in JupyterLab's."""
    policy = JupyterHandler.content_security_policy.fget(handler)  # type: ignore[attr-defined]  # it is a property
    return f"{policy}; sandbox allow-scripts"


def install() -> None:
    """Change nbgrader's handler, in this process."""
    SubmissionFilesHandler.content_security_policy = property(_sandboxed)
