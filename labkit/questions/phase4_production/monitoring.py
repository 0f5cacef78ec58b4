"""Questions of monitoring."""

from __future__ import annotations

from labkit.questions import Number

QUESTIONS = [
    Number(
        name="placeholder",
        text="?",
        answer=lambda: 1.0,
        solution="1",
        tolerance=0.02,
        otherwise="?",
        why="{answer}",
    ),
]
