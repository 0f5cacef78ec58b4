"""What learners have for `monitoring`: given parts, visible checks, questions."""
