"""`%question`: ask a question of the course, as a widget, and judge what the learner answers."""

from labkit.notebook.questions.magic import magics

__all__ = ["magics"]
