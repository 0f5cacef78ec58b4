"""What learners have for `zero`: given parts, visible checks, questions."""
