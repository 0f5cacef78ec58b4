"""What a learner reads about their submission."""

from autograder.feedback.outputs import for_learner, outputs

__all__ = ["for_learner", "outputs"]
