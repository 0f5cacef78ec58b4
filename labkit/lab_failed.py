"""The words for what could not be judged through the lab's fault, the same wherever learners and instructors read them.

They need no torch: the pages of a classroom have none.
"""

from __future__ import annotations

LAB_FAILED = "the lab failed; this costs no points"
SHOW_IT = "run it again; if the lab fails again, show this to your instructor"


def lab_failed(reason: str) -> str:
    """Return the reason of an error that is not the submission's fault, with the words for it."""
    return reason if LAB_FAILED in reason else f"{LAB_FAILED}: {reason}"
