"""Where learners' code runs when it is graded, and nowhere else."""

from autograder.sandbox.sandbox import Enclosure, Sandbox, SandboxUnavailable

__all__ = ["Enclosure", "Sandbox", "SandboxUnavailable"]
