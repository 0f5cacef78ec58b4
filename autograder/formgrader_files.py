"""An extension of Jupyter's server, for instructors: pages of submissions in the formgrader have no rights.

The formgrader serves any file of the course, those of submissions too, as a page at its own address.
"""

from __future__ import annotations

from typing import Any

from jupyter_server.base.handlers import JupyterHandler
from nbgrader.server_extensions.formgrader.handlers import SubmissionFilesHandler


def _sandboxed(handler: JupyterHandler) -> str:
    """Return the policy of pages of submissions: their scripts have no origin, so no rights, as in JupyterLab's."""
    policy = JupyterHandler.content_security_policy.fget(handler)  # type: ignore[attr-defined]  # it is a property
    return f"{policy}; sandbox allow-scripts"


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    SubmissionFilesHandler.content_security_policy = property(_sandboxed)
