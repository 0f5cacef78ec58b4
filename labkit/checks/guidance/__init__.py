"""Guidance for a learner: the TODOs of an exercise, hints for them, and the reference solution after full marks."""
