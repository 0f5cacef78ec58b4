"""`%progress`: the points so far, and where to continue."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from labkit.notebook.magics import Magic

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def magics() -> list[Magic]:
    """The magic."""
    return [Magic("progress", _progress, "Show your points in all exercises, and where to continue.")]


def _progress(shell: InteractiveShell, options: argparse.Namespace, cell: str) -> None:
    from labkit.progress.table import show

    show()
