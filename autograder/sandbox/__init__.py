"""Where learners' code runs when it is graded, and nowhere else."""

from autograder.sandbox.books import Usage
from autograder.sandbox.enclosure import Enclosure
from autograder.sandbox.limits import Limits
from autograder.sandbox.runner import Asked, CommandRunner, Runner, Started
from autograder.sandbox.sandbox import Sandbox
from autograder.sandbox.unavailable import SandboxUnavailable

__all__ = [
    "Asked",
    "CommandRunner",
    "Enclosure",
    "Limits",
    "Runner",
    "Sandbox",
    "SandboxUnavailable",
    "Started",
    "Usage",
]
