"""The sandbox: the only place where learners' code runs during grading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.lazy_names import lazy_names

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

# looked up at first use: the sandboxes' forkserver starts before torch is imported here
_PUBLIC = {
    "CommandRunner": ".runner",
    "Limits": ".limits",
    "Runner": ".runner",
    "Sandbox": ".sandbox",
    "SandboxHandle": ".runner",
    "SandboxInstance": ".instance",
    "SandboxRequest": ".runner",
    "SandboxUnavailable": ".unavailable",
    "Usage": ".resource_accounting",
}
__all__ = sorted(_PUBLIC)

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
