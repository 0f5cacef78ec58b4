"""Hints for a cell on ranks that uses a name defined only in the notebook."""

from __future__ import annotations

import difflib
import re
from types import ModuleType
from typing import TYPE_CHECKING, Any

from labkit import exercises
from labkit.clusters import Run
from labkit.transport import wire

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_OF_IPYTHON = ("display", "get_ipython", "In", "Out", "_", "__", "exit", "quit")


def advice(shell: InteractiveShell, run: Run, kept: bool) -> str:
    """One-line hint if the first failure of `run` is a name defined in the notebook; else an empty string.

    Only for a line of the cell itself: what the notebook defines is of no use to a module.

    kept: whether the ranks stay alive after the cell, so that values can be pushed to them.
    """
    error = run.first_failure.error if run.first_failure else None
    if error is None or error.type != "NameError" or error.file.endswith(".py"):
        return ""
    missing = re.match(r"name '(\w+)' is not defined", error.message)
    if missing is None:
        return ""
    name = missing[1]
    if name in _OF_IPYTHON:
        return "this cell is plain Python: use print(), or end it with an expression, whose value is returned"
    if name in shell.user_ns:
        return _way_to(name, shell.user_ns[name], kept)
    public = [defined for defined in shell.user_ns if not defined.startswith("_") and defined not in _OF_IPYTHON]
    near = next(iter(difflib.get_close_matches(name, public, n=1, cutoff=0.75)), "")
    if not near:
        return ""
    way = _way_to(near, shell.user_ns[near], kept)
    return way if re.search(rf"['.]{near}'\?", error.message) else f"did you mean {near}? {way}"


def _way_to(name: str, value: Any, kept: bool) -> str:
    """Say how a cell on ranks gets a name that the notebook defines."""
    if line := _import_of(name, value):
        return f"{line} in this cell: ranks do not share the notebook's names"
    ways = "define it in this cell"
    if kept and wire.what_stays(value) is None:
        ways += f", or %ranks push {name}, or %%ranks --push {name}"
    return f"{name} is defined in the notebook, not on the ranks: {ways}"


def _import_of(name: str, value: Any) -> str:
    """The import that binds `value` to this name; empty when it was created in the notebook."""
    if isinstance(value, ModuleType):
        return f"import {name}" if value.__name__ == name else f"import {value.__name__} as {name}"
    module = getattr(value, "__module__", None)
    if not callable(value) or not isinstance(module, str) or module == "__main__":
        return ""
    own = getattr(value, "__name__", None)
    parent, _, exercise = module.rpartition(".")
    if parent == exercises.__name__:
        return f"from {parent} import {exercise}, and write {exercise}.{name}," if own == name else ""
    return f"from {module} import {name}" if own == name else ""
