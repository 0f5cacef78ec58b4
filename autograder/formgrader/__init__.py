"""An extension of Jupyter's server, for instructors: what nbgrader's formgrader does otherwise in this lab.

Pages of submissions have no rights (`files`), and what could not be saved is shown with the reason (`saving`).
"""

from __future__ import annotations

from typing import Any

from autograder.formgrader import files, saving


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _link_jupyter_server_extension(server: Any) -> None:
    """Change nbgrader's handlers; called before any extension is loaded, and with it the formgrader."""
    files.install()
    saving.install()


def _load_jupyter_server_extension(server: Any) -> None:
    """Do nothing: Jupyter's server requires the function."""
