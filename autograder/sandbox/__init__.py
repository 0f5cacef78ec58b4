"""The sandbox: the only place where learners' code runs during grading."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autograder.sandbox.instance import SandboxInstance as SandboxInstance
    from autograder.sandbox.limits import Limits as Limits
    from autograder.sandbox.resource_accounting import Usage as Usage
    from autograder.sandbox.runner import CommandRunner as CommandRunner
    from autograder.sandbox.runner import Runner as Runner
    from autograder.sandbox.runner import SandboxHandle as SandboxHandle
    from autograder.sandbox.runner import SandboxRequest as SandboxRequest
    from autograder.sandbox.sandbox import Sandbox as Sandbox
    from autograder.sandbox.unavailable import SandboxUnavailable as SandboxUnavailable

_WHERE = {
    "SandboxRequest": "runner",
    "CommandRunner": "runner",
    "SandboxInstance": "instance",
    "Limits": "limits",
    "Runner": "runner",
    "Sandbox": "sandbox",
    "SandboxUnavailable": "unavailable",
    "SandboxHandle": "runner",
    "Usage": "resource_accounting",
}
"""Module of each public name, imported on first use: the sandboxes' forkserver starts before torch is imported here."""

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    attribute = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = attribute
    return attribute
