"""What learners have for `local_sgd`: given parts, visible checks, questions."""
