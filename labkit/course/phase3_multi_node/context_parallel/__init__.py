"""What learners have for `context_parallel`: given parts, visible checks, questions."""
