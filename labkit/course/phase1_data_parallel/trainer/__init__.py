"""What learners have for `trainer`: given parts, visible checks, questions."""
