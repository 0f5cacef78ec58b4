"""The error for a sandbox that is missing or gone; it costs no marks."""

from __future__ import annotations


class SandboxUnavailable(RuntimeError):
    """No sandbox can be made here; the message says why and what to do."""


def refusal(reason: str) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"No sandbox for learners' code: {reason}. Nothing was graded. "
        "Sandboxes take bubblewrap and a machine that allows this user namespaces: docs/sandbox.md says how to allow "
        "them, and what else can be used. Learners need none. To grade code that you trust without one, set "
        "`c.Sandbox.allow_none = True` in nbgrader_config.py of the course's folder."
    )
