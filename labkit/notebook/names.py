"""What to try when a cell on ranks uses a name that only the notebook knows."""

from __future__ import annotations

import re
from types import ModuleType
from typing import TYPE_CHECKING, Any

from labkit.clusters import Run, wire

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_OF_IPYTHON = ("display", "get_ipython", "In", "Out", "_", "__", "exit", "quit")


def advice(shell: InteractiveShell, run: Run, kept: bool) -> str:
    """One line when the first failure of `run` is a name that the notebook has; else an empty string.

    kept: the ranks stay after the cell, so that values can be pushed to them.
    """
    error = run.first_failure.error if run.first_failure else None
    missing = re.match(r"name '(\w+)' is not defined", error.message) if error and error.type == "NameError" else None
    if missing is None:
        return ""
    name = missing[1]
    if name in _OF_IPYTHON:
        return "this cell is plain Python: print() shows something, and the value of the last line comes back"
    if name not in shell.user_ns:
        return ""
    value = shell.user_ns[name]
    if line := _import_of(name, value):
        return f"{line} in this cell: ranks have names of their own"
    ways = "define it in this cell"
    if kept and wire.what_stays(value) is None:
        ways += f", or %ranks push {name}, or %%ranks --push {name}"
    return f"{name} is a variable of the notebook, not of the ranks: {ways}"


def _import_of(name: str, value: Any) -> str:
    """The line that gives `value` this name; empty when it was made in the notebook."""
    if isinstance(value, ModuleType):
        return f"import {name}" if value.__name__ == name else f"import {value.__name__} as {name}"
    module = getattr(value, "__module__", None)
    if not callable(value) or not isinstance(module, str) or module == "__main__":
        return ""
    own = getattr(value, "__name__", None)
    return f"from {module} import {name}" if own == name else ""
