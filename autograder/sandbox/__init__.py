"""Where learners' code runs when it is graded, and nowhere else."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autograder.sandbox.books import Usage as Usage
    from autograder.sandbox.enclosure import Enclosure as Enclosure
    from autograder.sandbox.limits import Limits as Limits
    from autograder.sandbox.runner import Asked as Asked
    from autograder.sandbox.runner import CommandRunner as CommandRunner
    from autograder.sandbox.runner import Runner as Runner
    from autograder.sandbox.runner import Started as Started
    from autograder.sandbox.sandbox import Sandbox as Sandbox
    from autograder.sandbox.unavailable import SandboxUnavailable as SandboxUnavailable

_WHERE = {
    "Asked": "runner",
    "CommandRunner": "runner",
    "Enclosure": "enclosure",
    "Limits": "limits",
    "Runner": "runner",
    "Sandbox": "sandbox",
    "SandboxUnavailable": "unavailable",
    "Started": "runner",
    "Usage": "books",
}
"""Where each public name is; imported when it is first used: the template is started before there is torch here."""

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = found
    return found
