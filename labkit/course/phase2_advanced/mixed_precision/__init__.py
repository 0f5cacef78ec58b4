"""What learners have for `mixed_precision`: given parts, visible checks, questions."""
